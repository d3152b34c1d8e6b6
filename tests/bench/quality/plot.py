#!/usr/bin/env python3
"""Draws what `forebay-bench quality --data=FILE` wrote: bits an element against the mean KL, by model.

    plot.py FILE OUT.png

Codecs of no loss, whose KL is 0, stand on the lower edge.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FLOOR = 1e-6  # where a KL of 0 is drawn


def rows_by_model(path):
    models = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "codec" in row:
            models.setdefault(row["model"], []).append(row)
    return models


def draw(axes, model, rows):
    for row in rows:
        kl = max(row["kl"], FLOOR)
        low, high = (max(edge, FLOOR) for edge in row["kl_interval"])
        below, above = max(kl - low, 0), max(high - kl, 0)
        axes.errorbar(row["bits"], kl, yerr=[[below], [above]], fmt="o", capsize=3)
        axes.annotate(row["codec"], (row["bits"], kl), xytext=(4, 4), textcoords="offset points", fontsize=8,
                      rotation=35)
    axes.axhline(FLOOR, color="grey", linewidth=0.5)
    axes.set_yscale("log")
    axes.set_xlim(0, 17.5)
    axes.set_title(f"{model}: {rows[0]['texts']} texts of {rows[0]['text_tokens']} tokens", fontsize=10)
    axes.set_xlabel("payload bits an element, measured")
    axes.grid(alpha=0.3)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("data", type=Path)
    args.add_argument("out", type=Path)
    args = args.parse_args()
    models = rows_by_model(args.data)
    figure, plots = plt.subplots(1, len(models), figsize=(6 * len(models), 5), sharey=True, squeeze=False)
    for axes, (model, rows) in zip(plots[0], models.items()):
        draw(axes, model, rows)
    highest = max(row["kl_interval"][1] for rows in models.values() for row in rows)
    plots[0][0].set_ylim(FLOOR / 2, max(highest, FLOOR) * 5)
    plots[0][0].set_ylabel(f"mean KL, nats, with its 95% interval; 0 drawn at {FLOOR:g}")
    figure.tight_layout()
    figure.savefig(args.out, dpi=120)
    print(f"plot: {args.out}")


if __name__ == "__main__":
    main()
