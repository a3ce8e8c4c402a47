#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums what `ncu --csv --page raw --metrics gpu__time_duration.sum` wrote by the kernels' names.
trace_table.py FILE [--step JSON] [--rows N] [--write FILE]   JSON: what bench/scaling printed for the same step"""
import argparse
import csv
import json
import re

DURATION = "gpu__time_duration.sum"
NANOSECONDS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}


def short(name):
    """The kernel's name without parameters, return type and the namespaces that all of ours have."""
    name = re.sub(r"\(anonymous namespace\)::|<unnamed>::|xylem::|cuda::|detail::|\([a-z ]*int\)|\(bool\)", "", name)
    depth, end = 0, len(name)
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and i > 0:
            end = i
            break
    return name[:end].removeprefix("void ").replace("__nv_bfloat16", "bf16")


def read(path):
    """Rows (name, nanoseconds) in the order of launch."""
    with open(path, newline="") as f:
        lines = [line for line in f if line.startswith('"')]
    rows = csv.DictReader(lines)
    unit = next(rows)[DURATION]  # the first row holds the units
    return [(r["Kernel Name"], float(r[DURATION].replace(",", "")) * NANOSECONDS[unit]) for r in rows]


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("file")
    args.add_argument("--step", type=json.loads, default={})
    args.add_argument("--rows", type=int, default=45)
    args.add_argument("--write")
    args = args.parse_args()
    sums = {}
    for name, duration in read(args.file):
        count, total = sums.get(short(name), (0, 0.0))
        sums[short(name)] = (count + 1, total + duration)
    table = sorted(((n, c, t / 1e6) for n, (c, t) in sums.items()), key=lambda row: -row[2])
    total = sum(row[2] for row in table)
    step = args.step.get("median_ms")
    print(f"== {args.step.get('model', args.file)}: {sum(r[1] for r in table)} kernels, {total:.2f} ms"
          + (f"; the step takes {step:.2f} ms" if step else ""))
    for name, count, ms in table[: args.rows]:
        print(f"{ms:9.3f} ms {100 * ms / total:5.1f} % {count:5d} x {1e3 * ms / count:9.1f} us  {name[:150]}")
    if len(table) > args.rows:
        rest = sum(row[2] for row in table[args.rows:])
        print(f"{rest:9.3f} ms {100 * rest / total:5.1f} %  in {len(table) - args.rows} others")
    if args.write:
        with open(args.write, "w", newline="") as f:
            out = csv.writer(f)
            out.writerow(["kernel", "count", "ms"])
            out.writerows((name, count, f"{ms:.6f}") for name, count, ms in table)


if __name__ == "__main__":
    main()
