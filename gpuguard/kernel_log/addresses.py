"""PCI addresses as kernel lines print them."""

from gpuguard.model.ids import PciAddress, parse_pci_address

FULL = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
SHORT = r"[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
BUS_DEVICE = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}"
ANY = rf"(?:{FULL}|{SHORT})"


def read_address(text: str) -> PciAddress:
    """The project's one spelling of what FULL, SHORT or BUS_DEVICE matched; domain 0 where none is printed."""
    return parse_pci_address(f"0000:{text}" if text.find(":") == 2 else text)
