"""Compiles the kernels of the recorded backend for a GPU, which needs none: a script of its own."""

from __future__ import annotations

from triton import compile as build
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from waitinfo.streaming.engine.loops import LONGEST
from waitinfo.streaming.recorded import kernels

# Types of the pointers; the other arguments are int32 or constants.
TYPES = {
    **dict.fromkeys(("IN", "SUMS", "NUMBERS", "FLOATS", "TOTALS", "OUT"), "*fp64"),
    **dict.fromkeys(("STATE", "READS", "FRESH_ROWS", "INTS", "STEP_TOKENS"), "*i64"),
    **dict.fromkeys(("AFTER", "TABLE"), "*i64"),
    **dict.fromkeys(("COMPLETE", "WHOLE", "FINITE", "WHOLE_AFTER"), "*i8"),
    **dict.fromkeys(("ALLOWED", "ACCEPTED"), "*i1"),
    **dict.fromkeys(("TARGETS", "RUNS", "REPEATS"), "*i32"),
    **dict.fromkeys(("NEXT_X", "FIRST_X", "NEXT_INFO", "X", "INFO", "FOLLOWING"), "*fp32"),
    **dict.fromkeys(("FOLLOWING_INFO", "SOURCE_INFO", "VALUES"), "*fp32"),
}
FINISH = {"WIDTH": 64, "CUTS": True, "END": 2, "PERIODS": LONGEST}
CONSTANTS = {
    "arrive": [{"SIZE": 128, "BLOCK": 16}],
    "note": [{"WIDTH": 64, "HAS_INFO": True}],
    "begin": [{"WINDOW": 8, "HAS_INFO": True}],
    "choose": [{"WINDOW": 8, "WIDTH": 64, "HAS_INFO": True}],
    "finish": [
        {**FINISH, "HAS_INFO": on, "HAS_SOURCE_INFO": on, "ASKED": on, "GUARD": not on}
        for on in (True, False)
    ],
    "report": [{"BLOCK": 128}],
}

if __name__ == "__main__":
    for name, every in CONSTANTS.items():
        kernel = getattr(kernels, name)
        for constants in every:
            signature = {
                argument: "constexpr" if argument in constants else TYPES.get(argument, "i32")
                for argument in kernel.arg_names
            }
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            build(source, target=GPUTarget("cuda", 90, 32))
        print(name)
