#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether gradients are reduced while the backward pass runs: trains a small GPT on several CPU ranks with --trace and
reads the trace. Writes bench/results/overlap_cpu_2_ranks.json, and the median step as docs/images/overlap.svg.

    cmake --build build/cpu --target xylem_cli && bench/overlap.py [--xylem build/cpu/bin/xylem] [--ranks 2]
"""
import argparse
import datetime
import glob
import json
import os
import statistics
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SETTINGS = {"model.name": "gpt2", "model.vocab": 256, "model.context": 128, "model.layers": 6, "model.heads": 4,
            "model.width": 192, "train.global_batch": 32, "distributed.bucket_mb": 2, "run.threads": 1}
COLORS = {"forward": "#8fb8de", "backward": "#3f6fb5", "optimizer": "#b9c6d3", "reduction": "#e08e45"}


def train(xylem, ranks, steps, folder):
    text = "".join(open(f, encoding="utf-8").read() for f in sorted(glob.glob(ROOT + "/docs/*.md")))
    with open(folder + "/text.txt", "w", encoding="utf-8") as out:
        out.write(text)
    subprocess.run([xylem, "data", "text", folder + "/text.txt", "--out", folder + "/data"], check=True,
                   stdout=subprocess.DEVNULL)
    with open(folder + "/run.toml", "w", encoding="utf-8") as out:
        out.write('[model]\nname = "gpt2"\n[data]\nkind = "tokens"\ntrain = "%s/data/train.tok"\n' % folder)
    sets = dict(SETTINGS, **{"run.dir": folder + "/run", "run.device": "cpu", "train.steps": steps})
    command = [ROOT + "/tests/dist/mpirun.sh", str(ranks), xylem, "train", folder + "/run.toml",
               "--trace", folder + "/trace.json"]
    for key, value in sets.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(folder + "/trace.json", encoding="utf-8") as f:
        return json.load(f)["traceEvents"]


def steps_of(events, rank):
    """Of every step: {"forward": [(begin, end), ...], "backward", "optimizer", "reduction"}, in microseconds."""
    spans = sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["ph"] == "X" and e["pid"] == rank)
    starts = [begin for begin, _, name in spans if name == "forward"] + [float("inf")]
    steps = []
    for first, following in zip(starts, starts[1:]):
        step = {name: [] for name in COLORS}
        for begin, end, name in spans:
            if first <= begin < following:
                kind = "reduction" if name.startswith("all_reduce bucket") else name
                if kind in step:
                    step[kind].append((begin, end))
        steps.append(step)
    return steps


def length(spans):
    return sum(end - begin for begin, end in spans)


def hidden(step):
    """The part of the reductions during which this rank's backward pass ran."""
    return sum(max(0, min(end, e) - max(begin, b)) for begin, end in step["reduction"] for b, e in step["backward"])


def draw(steps, file):
    """One step of all ranks, from above: what the rank computes, what its communication thread reduces."""
    zero = min(s["forward"][0][0] for s in steps)
    last = max(s["optimizer"][-1][1] for s in steps)
    width, left, lane = 860, 130, 30
    scale = (width - left - 20) / (last - zero)
    out = []

    def text(x, y, words, anchor="start", color="#333"):
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{words}</text>')

    y = 44
    for rank, step in enumerate(steps):
        for label, kinds in (("computes", ("forward", "backward", "optimizer")), ("reduces", ("reduction",))):
            text(left - 10, y + 18, f"rank {rank} {label}", "end")
            out.append(f'<rect x="{left}" y="{y}" width="{width - left - 20}" height="{lane - 6}" fill="#f3f4f6"/>')
            for kind in kinds:
                for begin, end in step[kind]:
                    out.append(f'<rect x="{left + (begin - zero) * scale:.1f}" y="{y}" '
                               f'width="{max(0.8, (end - begin) * scale - 0.6):.1f}" height="{lane - 6}" '
                               f'fill="{COLORS[kind]}"/>')
            y += lane
        y += 12
    for i in range(6):
        x = left + (width - left - 20) * i / 5
        text(x, y + 10, f"{(last - zero) * i / 5e3:.0f} ms", "end" if i == 5 else "middle")
    x = left
    for kind, color in COLORS.items():
        out.append(f'<rect x="{x}" y="16" width="12" height="12" fill="{color}"/>')
        text(x + 18, 26, "reduction of a bucket" if kind == "reduction" else kind)
        x += 110
    with open(file, "w", encoding="utf-8") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 24}" '
                'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>\n'
                + "\n".join(out) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--xylem", default=ROOT + "/build/cpu/bin/xylem")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    load = os.getloadavg()[0]  # other work delays the reductions, which need both ranks at once
    with tempfile.TemporaryDirectory() as folder:
        events = train(args.xylem, args.ranks, args.steps, folder)
    ranks = [steps_of(events, r) for r in range(args.ranks)]
    warm = range(3, min(len(steps) for steps in ranks))  # the order of the buckets is learnt in the first
    fraction = {i: sum(hidden(r[i]) for r in ranks) / sum(length(r[i]["reduction"]) for r in ranks) for i in warm}
    middle = sorted(warm, key=fraction.get)[len(warm) // 2]

    def median(of):
        return statistics.median(of(r[i]) for r in ranks for i in warm)

    # A copy of the tree without .git lies about it, so it is told.
    commit = os.environ.get("XY_COMMIT") or subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip() or "unknown"

    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown")
    result = {
        "what": "bench/overlap.py: share of the time of the bucket reductions during which the same rank's backward "
                "pass runs, from the trace of xylem train under mpirun",
        "ranks": args.ranks, "settings": SETTINGS, "steps": len(warm),
        "buckets": len(ranks[0][middle]["reduction"]),
        "overlapped_fraction_median": round(statistics.median(fraction.values()), 3),
        "overlapped_fraction_min_max": [round(f(fraction.values()), 3) for f in (min, max)],
        "buckets_done_before_backward_ends_median":
            median(lambda s: sum(end < s["backward"][-1][1] for _, end in s["reduction"])),
        "backward_ms_median": round(median(lambda s: length(s["backward"])) / 1e3, 2),
        "reductions_ms_median": round(median(lambda s: length(s["reduction"])) / 1e3, 2),
        "reductions_outside_of_backward_ms_median":
            round(median(lambda s: length(s["reduction"]) - hidden(s)) / 1e3, 2),
        "step_ms_median": round(median(lambda s: s["optimizer"][-1][1] - s["forward"][0][0]) / 1e3, 2),
        "cpu": cpu, "cores": os.cpu_count(), "load_before": round(load, 1), "commit": commit,
        "date": datetime.date.today().isoformat(),
    }
    name = f"bench/results/overlap_cpu_{args.ranks}_ranks.json"
    with open(f"{ROOT}/{name}", "w", encoding="utf-8") as f:
        json.dump(result, f, indent=2)
        f.write("\n")
    draw([r[middle] for r in ranks], ROOT + "/docs/images/overlap.svg")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
