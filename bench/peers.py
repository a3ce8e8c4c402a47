#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The turns of bench/peers.sh.   peers.py [--rounds N] [--steps N] [MODEL:BATCH]..."""
import argparse
import datetime
import json
import statistics
import subprocess
import sys

CASES = ["gpt2-124m:64", "gpt2-1.5b:16", "llama-1b:4", "resnet50:256"]
MODES = {"in any order": ["--not-deterministic"], "repeatable": []}


def ours(mode, model, batch, steps):
    command = ["build/dev/bin/scaling", "--graph", *MODES[mode], model, batch, str(steps)]
    out = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in out.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(command)}: exit code {out.returncode}\n{out.stderr[-2000:]}")
    return json.loads(lines[-1])


class Peer:
    def __init__(self, model, batch, steps):
        self.process = subprocess.Popen(["python3", "bench/scaling_torch.py", "--turns", model, batch, str(steps)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect("ready")

    def expect(self, beginning):
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line
        raise RuntimeError(f"PyTorch's side ended with code {self.process.wait()}")

    def turn(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.expect("{"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()


def case(name, rounds, steps):
    model, batch = name.split(":")
    rates = {"torch": [], **{mode: [] for mode in MODES}}
    last = {}
    with Peer(model, batch, steps) as peer:
        for _ in range(rounds):
            for mode in MODES:
                last[mode] = ours(mode, model, batch, steps)
                rates[mode].append(last[mode]["units_per_s"])
            last["torch"] = peer.turn()
            rates["torch"].append(last["torch"]["units_per_s"])
    middle = {side: statistics.median(r) for side, r in rates.items()}
    ratios = {mode: middle[mode] / middle["torch"] for mode in MODES}
    print(f"{name:16} torch {middle['torch']:9.0f} {last['torch']['unit']}/s", end="")
    for mode, ratio in ratios.items():
        print(f"; {mode} {middle[mode]:9.0f} = {ratio:.3f}", end="")
    print(f"; GiB {last['torch']['peak_gib']} and {last['in any order']['peak_gib']}", flush=True)
    return {"case": name, "units_per_s": rates, "ratio": ratios, "last": last}


def text_of(*command):
    out = subprocess.run(command, capture_output=True, text=True)
    return out.stdout.strip() or "unknown"


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("cases", nargs="*", default=CASES)
    args.add_argument("--rounds", type=int, default=2)
    args.add_argument("--steps", type=int, default=20)
    args = args.parse_args()
    results, failed = [], []
    for name in args.cases:
        try:
            results.append(case(name, args.rounds, args.steps))
        except RuntimeError as e:
            failed.append(f"{name}: {e}")
    report = {"gpu": text_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
              "commit": text_of("git", "rev-parse", "HEAD"),
              "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "rounds": args.rounds, "steps": args.steps, "cases": results, "failed": failed}
    with open("bench/results/peers.json", "w") as f:
        json.dump(report, f, indent=1)
        f.write("\n")
    for text in failed:
        print(f"FAILED {text}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
