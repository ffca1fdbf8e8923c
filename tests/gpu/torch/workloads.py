"""Five ways people use a GPU, each with torch's default allocator, with expandable segments and with GLake, interleaved.

usage: workloads.py WORKLOAD[,WORKLOAD...] [--modes default,expandable,glake] [--rounds 2] [--limit GIB] [--free] [--deterministic]

Needs a GPU, torch, transformers, peft, and the package `glake` on PYTHONPATH. Imports once and forks a child per run, so that runs are
short and alike; the first one only warms up. Prints a JSON object per run. `--limit` sets the memory fraction; `--free` leaves out the
synchronisation after each step.
"""
import argparse
import hashlib
import json
import os
import random
import signal
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

DEVICE = "cuda"
DROPPED = 3  # first steps: kernels are chosen, both allocators fill up


def llama(hidden, layers, heads):
    config = LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 4,
        intermediate_size=int(hidden * 2.75) // 64 * 64, vocab_size=32000, max_position_embeddings=8192,
    )
    config._attn_implementation = "sdpa"
    with torch.device(DEVICE):
        return LlamaForCausalLM(config).to(torch.bfloat16)


class Run:
    def __init__(self, free):
        self.free, self.times, self.losses = free, [], []

    def step(self, work):
        began = time.perf_counter()
        loss = work()
        if loss is not None:
            self.losses.append(loss)
        if not self.free:
            torch.cuda.synchronize()
        self.times.append(time.perf_counter() - began)


def train(run, model, steps, lengths, tokens, recompute=False, offload=False, accumulate=1):
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-5, foreach=True)

    def one():
        for _ in range(accumulate):
            length = random.randrange(*lengths) // 8 * 8
            x = torch.randint(0, 32000, (max(1, tokens // length), length), device=DEVICE)
            loss = model(input_ids=x, labels=x, use_cache=False).loss
            loss.backward()
        if offload:
            for p in params:  # gradients go to the host and come back, as with CPU offload
                host = p.grad.to("cpu", non_blocking=True)
                torch.cuda.current_stream().synchronize()
                p.grad = None
                p.grad = host.to(DEVICE)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for _ in range(steps):
        run.step(one)


def serve(run, model, rounds, batch, low, high, new):
    model.eval()

    def one():
        x = torch.randint(0, 32000, (random.randrange(1, batch + 1), random.randrange(low, high)), device=DEVICE)
        model.generate(input_ids=x, max_new_tokens=random.randrange(8, new), do_sample=True, pad_token_id=0)

    with torch.inference_mode():
        for _ in range(rounds):
            run.step(one)


def varlen(run):
    train(run, llama(2048, 16, 16), 14, (256, 6144), 16384)


def recompute(run):
    train(run, llama(2048, 24, 16), 8, (256, 8192), 32768, recompute=True)


def lora_offload(run):
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    train(run, get_peft_model(llama(2048, 24, 16), lora), 8, (256, 6144), 24576, recompute=True, offload=True)


def generate_train(run):
    model = llama(2048, 16, 16)
    for _ in range(3):
        serve(run, model, 2, 16, 64, 1024, 48)
        train(run, model, 3, (256, 4096), 16384)


def serving(run):
    serve(run, llama(4096, 24, 32), 10, 24, 64, 4096, 48)


WORKLOADS = {f.__name__: f for f in (varlen, recompute, lora_offload, generate_train, serving)}


def measure(name, mode, limit, free):
    """In the child."""
    signal.alarm(45)
    if mode == "glake":
        from glake import torch_adapter

        outcome = torch_adapter.install()
        if outcome.how != "adapter":
            raise SystemExit(str(outcome))
    elif mode == "expandable":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch.manual_seed(0)
    random.seed(0)
    torch.cuda.init()
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    run, died, began = Run(free), None, time.perf_counter()
    try:
        WORKLOADS[name](run)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as e:
        died = str(e)[:500]
    whole = time.perf_counter() - began
    losses = [loss.double().item() for loss in run.losses]
    stats = torch.cuda.memory_stats()
    times = sorted(run.times[DROPPED:]) or [0.0]
    gib = lambda key: round(stats[key] / 2**30, 3)  # noqa: E731
    result = dict(
        workload=name, mode=mode, limit=limit, steps=len(run.times), whole_s=round(whole, 3), steps_s=round(sum(run.times[DROPPED:]), 3),
        median_ms=round(times[len(times) // 2] * 1e3, 2), p99_ms=round(times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3, 2),
        first_ms=round(sum(run.times[:DROPPED]) * 1e3), peak_requested=gib("requested_bytes.all.peak"),
        peak_allocated=gib("allocated_bytes.all.peak"), peak_reserved=gib("reserved_bytes.all.peak"),
        ratio=round(stats["requested_bytes.all.peak"] / max(1, stats["reserved_bytes.all.peak"]), 4),
        retries=stats["num_alloc_retries"], loss=hashlib.sha256(repr(losses).encode()).hexdigest()[:12] if losses else "-",
        last_loss=losses[-1] if losses else None, oom=died,
    )
    if mode == "glake":
        import glake

        mine = glake.get_memory_stats(0)
        names = ("remapped_bytes", "foreground", "background", "waits", "ooms", "ooms_avoided")
        result["core"] = {name: mine[name] for name in names if mine.get(name)}
    print(json.dumps(result), flush=True)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("workloads")
    words.add_argument("--modes", default="default,expandable,glake")
    words.add_argument("--rounds", type=int, default=2)
    words.add_argument("--limit", type=float, default=0)
    words.add_argument("--free", action="store_true")
    words.add_argument("--deterministic", action="store_true")
    words.add_argument("--warm", type=int, default=1, help="runs before those that count")
    args = words.parse_args()
    torch.use_deterministic_algorithms(args.deterministic)
    if args.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when CUDA starts, in the child
    for name in args.workloads.split(","):
        modes = args.modes.split(",")
        for mode in modes[: args.warm] + modes * args.rounds:
            child = os.fork()  # before CUDA is used
            if child == 0:
                measure(name, mode, args.limit, args.free)
                sys.stdout.flush()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status != 0:
                print(json.dumps(dict(workload=name, mode=mode, status=status)), flush=True)


main()
