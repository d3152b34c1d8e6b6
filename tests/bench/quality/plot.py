#!/usr/bin/env python3
"""Draws what `forebay-bench quality --data=FILE` wrote: bits an element against the mean KL, by model.

    plot.py FILE OUT.png

Codecs of no loss, whose KL is 0, stand on the lower edge. The line has those that none beats in both.
"""

import argparse
import json
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.text import Text
from matplotlib.transforms import Bbox

FLOOR = 1e-6  # where a KL of 0 is drawn
# By how a name begins: the same in all panels.
FAMILIES = {
    "raw, lossless": ("raw", "lossless"),
    "INT8, INT4, INT2": ("int", "k8v", "k4v"),
    "FP8": ("fp8",),
    "KIVI": ("kivi",),
    "Lloyd-Max": ("lloyd",),
    "uniform steps": ("uniform",),
}
MARKERS = "sovD^*"
NEAR = 9  # points, from which a label needs no line to its own
# Where a label may stand, in points off its own: near first, to the right first.
PLACES = [(radius * math.cos(angle), radius * math.sin(angle)) for radius in (NEAR, 14, 20, 28, 36, 46, 58)
          for angle in (math.pi / 8 * turn for turn in (1, -1, 2, -2, 0, 7, -7, 6, -6, 8, 3, -3, 5, -5, 4, -4))]


def rows_by_model(path):
    models = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "codec" in row:
            models.setdefault(row["model"], []).append(row)
    return models


def family_of(codec):
    for at, beginnings in enumerate(FAMILIES.values()):
        if codec.startswith(beginnings):
            return at
    return len(FAMILIES)


def height_of(row):
    return max(row["kl"], FLOOR)


def best_of(rows):
    """Those that no other has both fewer bits and less KL than."""
    best = []
    for row in sorted(rows, key=lambda row: (row["bits"], row["kl"])):
        if not best or row["kl"] < best[-1]["kl"]:
            best.append(row)
    return best


def draw_points(axes, rows):
    for row in rows:
        kl = height_of(row)
        low, high = (max(edge, FLOOR) for edge in row["kl_interval"])
        family = family_of(row["codec"])
        axes.errorbar(row["bits"], kl, yerr=[[max(kl - low, 0)], [max(high - kl, 0)]], capsize=2, elinewidth=0.8,
                      fmt=MARKERS[family % len(MARKERS)], color=f"C{family}", markersize=9 if family == 5 else 6)
    best = best_of(rows)
    axes.plot([row["bits"] for row in best], [height_of(row) for row in best], color="grey", linewidth=0.8,
              linestyle=":", zorder=0)


def draw_labels(axes, rows):
    """Each beside its point, where nothing else is; with a line to it where that is not near."""
    renderer = axes.figure.canvas.get_renderer()
    scale = axes.figure.dpi / 72
    points = axes.transData.transform([(row["bits"], height_of(row)) for row in rows])
    taken = [Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale) for x, y in points]
    for row, point in sorted(zip(rows, points), key=lambda pair: tuple(pair[1])):
        for place in PLACES:
            dx, dy = place
            far = math.hypot(dx, dy) > NEAR + 1
            label = axes.annotate(
                row["codec"], (row["bits"], height_of(row)), xytext=place, textcoords="offset points", fontsize=7.5,
                ha="left" if dx > 1 else "right" if dx < -1 else "center", va="center",
                arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "grey"} if far else None)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer).padded(1.5)
            inside = all(axes.bbox.contains(x, y) for x, y in (box.min, box.max))
            if place == PLACES[-1] or (inside and not any(box.overlaps(other) for other in taken)):
                taken.append(box)
                break
            label.remove()


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("data", type=Path)
    args.add_argument("out", type=Path)
    args = args.parse_args()
    models = rows_by_model(args.data)
    highest = max(row["kl_interval"][1] for rows in models.values() for row in rows)
    figure, plots = plt.subplots(1, len(models), figsize=(6.5 * len(models), 7), dpi=120, sharey=True, squeeze=False)
    for axes, (model, rows) in zip(plots[0], models.items()):
        axes.set_yscale("log")
        axes.set_xlim(0, 17.5)
        axes.set_ylim(FLOOR / 2, max(highest, FLOOR) * 5)
        axes.set_title(f"{model}: {rows[0]['texts']} texts of {rows[0]['text_tokens']} tokens", fontsize=10)
        axes.set_xlabel("payload bits an element, measured")
        axes.axhline(FLOOR, color="grey", linewidth=0.5)
        axes.grid(alpha=0.3)
        draw_points(axes, rows)
    for at, name in enumerate(FAMILIES):
        plots[0][0].plot([], [], MARKERS[at], color=f"C{at}", label=name)
    plots[0][0].legend(loc="upper right", fontsize=8)
    plots[0][0].set_ylabel(f"mean KL, nats, with its 95% interval; 0 drawn at {FLOOR:g}")
    figure.tight_layout()
    figure.canvas.draw()
    for axes, rows in zip(plots[0], models.values()):
        draw_labels(axes, rows)
    figure.savefig(args.out)
    print(f"plot: {args.out}")


if __name__ == "__main__":
    main()
