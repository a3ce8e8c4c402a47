# For the scripts of this folder: writes text for a GPT of a few thousand parameters, and job.toml, which trains it for 40
# steps, into the current folder. Needs $xylem.
for i in {1..400}; do echo "And it came to pass on day $i."; done >days.txt
"$xylem" data text days.txt --out . >/dev/null
cat >job.toml <<EOF
[run]
device = "cpu"
dir = "run"
[model]
name = "gpt2"
vocab = 256
context = 16
layers = 1
heads = 2
width = 16
[data]
kind = "tokens"
train = "train.tok"
[train]
steps = 40
global_batch = 8
log_every = 10
[checkpoint]
every = 20
EOF
