"""What GenZ says of the published serving rows. Runs under a Python that has genz-llm; the README
says how to make one.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from typing import Any

from benchmarks.peers.published import Json, chip, decoder, devices_per_chip, option, rows, write

SHIPPED_SYSTEMS = {"v5e": "TPUv5e"}
SHIPPED_MODELS = {
    "gemma-7b": "google/gemma-7B",
    "llama3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama3.1-70b": "meta-llama/Llama-3.1-70B",
    "llama2-7b": "meta-llama/Llama-2-7B",
    "llama2-13b": "meta-llama/Llama-2-13B",
}
NOTES = (
    "system_eff = 1, the default; one device of GenZ is one chip",
    "v5e: the system TPUv5e that GenZ ships; other chips: a system of the public numbers in"
    " perf_model/chips, bandwidths in GiB/s as GenZ reads them",
    "Qwen3-32B: a ModelConfig of the public sizes, for GenZ ships none; other models as shipped",
    "int8 and fp8 rows: bits = int8 or fp8, which GenZ means for weights, cache and activations",
)


def system(name: str) -> str | Json:
    """The name of a system that GenZ ships, or one made of a chip file."""
    if name in SHIPPED_SYSTEMS:
        return SHIPPED_SYSTEMS[name]
    facts = chip(name)
    return {
        "real_values": True,
        "Flops": facts["peak_ops_per_s.bf16"] / 1e12,
        "Memory_size": facts["memory.hbm_bytes"] / 2**30,
        "Memory_BW": facts["memory.hbm_bytes_per_s"] / 2**30,
        "ICN": facts["ici.one_way_bytes_per_s"] / 2**30,
    }


def model(genz: Any, name: str) -> Any:
    """The name of a model that GenZ ships, or a ModelConfig of the decoder's sizes."""
    if name in SHIPPED_MODELS:
        return SHIPPED_MODELS[name]
    sizes = decoder(name)
    return genz.ModelConfig(
        model=name,
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["width"],
        intermediate_size=sizes["hidden"],
        num_ffi=2,
        num_decoder_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        head_dim=sizes["head_dim"],
    )


def _step_s(modelling: Any, genz: Any, row: Json, arguments: list[str], **others: int) -> float:
    devices = devices_per_chip(chip(row["chip"]))
    chips = max(int(option(arguments, "--tensor", "1")) // devices, 1)
    replicas = int(option(arguments, "--data", "1"))
    result = modelling(
        model=model(genz, option(arguments, "--model")),
        batch_size=int(option(arguments, "--batch")) // replicas,
        input_tokens=int(option(arguments, "--seq")),
        system_name=system(row["chip"]),
        bits=option(arguments, "--quantize", "bf16"),
        tensor_parallel=chips,
        parallelism_heirarchy=f"TP{{{chips}}}_EP{{1}}_PP{{1}}",
        **others,
    )
    return float(result["Latency"]) / 1e3  # of the dict: the attribute of that name is always 0


def predict(llm: Any, models: Any, row: Json) -> Json:
    """The row with prefill_s, of one prompt, and decode_s, a list of a step of the full batch and,
    where the row has it, of few sequences; or with a reason.
    """
    config = row["config"]
    steps = [config[name] for name in ("decode", "decode_few") if name in config]
    prompts = int(option(config["prefill"], "--batch"))
    try:
        prefill_s = _step_s(llm.prefill_moddeling, models, row, config["prefill"]) / prompts
        decode_s = [
            _step_s(llm.decode_moddeling, models, row, step, output_tokens=0, Bb=1)
            for step in steps
        ]
    except ValueError as error:
        return row | {"reason": str(error).splitlines()[0].strip()}
    return row | {"prefill_s": prefill_s, "decode_s": decode_s}


def main() -> None:
    """Every serving row, printed and, with --json, written for table.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write what table.py reads")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # GenZ's, of the frames it builds
    llm, models = importlib.import_module("GenZ"), importlib.import_module("GenZ.Models")
    found = [predict(llm, models, row) for row in rows("serving")]
    for answer in found:
        print(answer["id"], answer.get("decode_s", answer.get("reason")))
    if options.json:
        write(options.json, "GenZ", "genz-llm", found, NOTES)


if __name__ == "__main__":
    main()
