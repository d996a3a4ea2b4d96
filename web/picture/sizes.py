"""The sizes of pictures. `SIZES` has the widths of one and of two columns of common journals."""

from __future__ import annotations

from dataclasses import dataclass

MM_PER_INCH, PIXELS_PER_INCH = 25.4, 96  # a pixel as in CSS
WIDTH, HEIGHT = 900, 420  # pixels, as on the page
SIZES = {"column": (85.0, 62.0), "page": (175.0, 84.0)}  # width and height in mm
MOST_PIXELS = 24_000_000  # of one PNG; a pixel takes 4 bytes while it is drawn
PAPER_DPI = 600
FORMATS = {"pdf": "application/pdf", "svg": "image/svg+xml", "png": "image/png"}  # format -> media type


@dataclass(frozen=True)
class Size:
    """Width and height in inches, dots per inch of a PNG, font size in points, and a factor of the width of lines."""

    width: float
    height: float
    dpi: float
    font: float
    line: float

    @property
    def pixels(self) -> float:
        """Number of pixels of a PNG."""
        return self.width * self.height * self.dpi**2


def size_of(size: str | None, width: int | None, height: int | None, scale: float | None, *, png: bool = True) -> Size:
    """The size for a name of SIZES, or for width and height in pixels.

    scale: image pixels of a PNG per pixel; by default 2, and 600 dots per inch for a named size. Raises ValueError if both
    `size` and `width` are given, and if `png` is true and the PNG would be too large.
    """
    if size is None:
        found = Size(
            (width or WIDTH) / PIXELS_PER_INCH, (height or HEIGHT) / PIXELS_PER_INCH, (scale or 2) * PIXELS_PER_INCH, 9, 1
        )
    else:
        if width is not None:
            raise ValueError(f"width is {width}, but size={size} has its own width; allowed: width or size")
        mm = SIZES[size]
        tall = mm[1] / MM_PER_INCH if height is None else height / PIXELS_PER_INCH
        dpi = scale * PIXELS_PER_INCH if scale else PAPER_DPI
        found = Size(mm[0] / MM_PER_INCH, tall, dpi, 7.5, 0.75)
    if png and found.pixels > MOST_PIXELS:
        most = (MOST_PIXELS / (found.width * found.height)) ** 0.5 / PIXELS_PER_INCH
        given = f"scale is {found.dpi / PIXELS_PER_INCH:g}, which gives {found.pixels / 1e6:.0f} million pixels"
        raise ValueError(f"{given}; allowed: at most {int(most * 100) / 100:g} at this size ({MOST_PIXELS // 10**6} million)")
    return found
