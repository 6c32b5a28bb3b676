"""The words of the catalogue that are its own, and what NVIDIA's buckets mean in them."""

from typing import Literal

FaultAction = Literal["none", "watch", "test", "drain"]

# What a bucket of NVIDIA's comes to when it is taken at its word. An entry of the catalogue that does something else
# must say why (`deviation`); a bucket with no action here always needs a reason.
BUCKETS: dict[str, tuple[FaultAction, ...]] = {
    "IGNORE": ("none",),
    "RESTART_APP": ("none", "watch"),
    "RESET_GPU": ("drain",),
    "RESTART_BM": ("drain",),
    "RESTART_VM": ("drain",),
    "CONTACT_SUPPORT": ("drain",),
    "CHECK_MECHANICALS": ("test",),
    "CHECK_UVM": ("test",),
    "UPDATE_SWFW": ("test",),
    "WORKFLOW_XID_45": ("test",),
    "WORKFLOW_XID_48": ("test",),
    "WORKFLOW_NVLINK_ERR": ("test",),
    "WORKFLOW_NVLINK5_ERR": ("test",),
    "XID_154": (),
    "XID_154_EVAL": ("none", "watch"),
    "not stated": ("none", "watch", "test"),
    # the classes of the fabric manager guide
    "fatal": ("drain",),
    "always fatal": ("drain",),
    "non-fatal": ("none", "watch"),
    "noted": ("none", "watch"),
    "not listed": ("none", "watch"),
}


def deviates(bucket: str, action: FaultAction) -> bool:
    """Whether the action differs from what the bucket comes to."""
    return action not in BUCKETS[bucket]
