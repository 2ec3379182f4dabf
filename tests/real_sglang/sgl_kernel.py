"""Stands in for SGLang's native kernel package, whose build on the package index is for CUDA.

With SGLANG_USE_CPU_ENGINE=1 SGLang imports these names at module level; with `--attention-backend torch_native` and
no speculative decoding it calls none of them.
"""


def _unsupported(name):
    def function(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel stand-in: {name}")

    function.__name__ = name
    return function


for _name in (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
):
    globals()[_name] = _unsupported(_name)
