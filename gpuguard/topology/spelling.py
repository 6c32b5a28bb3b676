"""What GPUs, nodes and domains are called where only some letters may stand."""

import hashlib
import re

# Words of a product's name that tell maker, line or form, and not which GPU it is.
MAKERS = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device"}
# From the first of these words on, a name tells memory, form or edition.
REST = re.compile(r"\d+(\.\d+)?(gb|g|mb)|sxm\d*|pcie|hbm\d*\w*|nvl\d*|generation|edition|server|workstation|max|laptop")
LONGEST_LABEL = 63
DIGEST = 8


def short(product: str | None) -> str | None:
    """The short name of a product: "NVIDIA H100 80GB HBM3" is h100, "NVIDIA RTX 6000 Ada Generation" rtx_6000_ada.

    Lower case letters, digits and _ alone; a part of the name that AutoDetect=nvml gives, as gres.conf(5) wants of a
    Type. None where nothing is left.
    """
    kept: list[str] = []
    for word in (product or "").lower().split():
        start, dash, _ = word.partition("-")
        if kept and REST.fullmatch(start):
            break
        if kept or start not in MAKERS:
            kept.append(re.sub(r"[^a-z0-9]+", "_", start))
        if kept and dash:
            break
    return "_".join(kept).strip("_") or None


def label(text: str) -> str | None:
    """This text as the value of a Kubernetes label; None where no letter of it may stand there.

    Source  Kubernetes, "Labels and Selectors": at most 63 of letters, digits, -, _ and ., the first and the last a
            letter or digit
    """
    clean = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", clean[:LONGEST_LABEL]) or None


def identity(text: str) -> str:
    """As `label`, but two texts never become one: where letters had to go, a digest of the whole follows."""
    clean = label(text)
    if clean == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST]
    start = re.sub(r"[^A-Za-z0-9]+$", "", (clean or "")[: LONGEST_LABEL - DIGEST - 1])
    return f"{start}-{digest}" if start else f"x{digest}"


def is_node(text: str) -> bool:
    """Whether this can be one node's name in a scheduler: letters, digits, -, _ and ., a letter or digit first."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}", text) is not None
