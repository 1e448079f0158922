"""``glu-lab sample``: words from a trained run."""

import argparse
import json

from rich.console import Console

from glu_lab.cli.model import add_model, open_model

HELP = "write text with a trained run: fill spans, or continue a beginning"
EPILOG = """\
examples:
  glu-lab sample /tmp/swiglu --text "The state of the <extra_id_0> is <extra_id_1>."
  glu-lab sample /tmp/lm --text "My fellow citizens," --samples 3 --temperature 0.8
  glu-lab sample /tmp/lm --text "My fellow citizens," --top_k 50 --top_p 0.95
  glu-lab sample /tmp/lm --text "The Congress" --temperature 0 --json --timing
  glu-lab sample --config=configs/smollm2_135m.py --text "The capital of France is"

An encoder–decoder fills the marks, shown in [brackets]; a decoder continues the text. --top_k and
--top_p leave out unlikely tokens, in this order, after the temperature. With --config, the weights
are those that the config starts from (initial.path)."""
PASS_THROUGH = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    parser.add_argument("--text", default="", help="the prompt")
    parser.add_argument("--samples", type=int, default=1, help="how many (default 1)")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens at most (default 48)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 for the likeliest (default 0.8)"
    )
    parser.add_argument("--top_k", type=int, help="draw from the k likeliest tokens alone")
    parser.add_argument(
        "--top_p",
        type=float,
        help="draw from the fewest likeliest tokens that have this probability together",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument(
        "--timing",
        action="store_true",
        help="write the samples once more, compiled, and print tokens/s of prompt and new tokens",
    )


def run(args: argparse.Namespace) -> int:
    """Samples and prints."""
    model = open_model(args)
    written = model.write(
        args.text,
        samples=args.samples,
        tokens=args.tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        timing=args.timing,
    )
    timing = written.timing
    if args.json:
        tree = {
            "step": model.step,
            "prompt": args.text,
            "samples": written.texts,
            "prompt_tokens": written.prompt_tokens,
            "new_tokens": written.new_tokens,
        }
        if timing:
            tree["prefill_tokens_per_second"] = timing.prefill_rate
            tree["decode_tokens_per_second"] = timing.decode_rate
        print(json.dumps(tree))
        return 0
    console = Console()
    for text in written.texts:
        console.print(text, highlight=False, markup=False)
        console.rule()
    if timing:
        decode = "none" if timing.decode_rate is None else f"{timing.decode_rate:,.0f} tokens/s"
        console.print(
            f"prefill {timing.prefill_rate:,.0f} tokens/s, decode {decode}",
            highlight=False,
            markup=False,
        )
    return 0
