// Attention backward, bf16, on tensor cores.
//
// One launch for both kinds of blocks, each longest first: those of keys before those of queries,
// as they take longest if few kv heads have long sequences. Blocks of queries then fill the
// multiprocessors that the last blocks of keys leave idle.
#include "worker/ops/cuda/attention/backward_keys.h"
#include "worker/ops/cuda/attention/backward_queries.h"

namespace shoal::worker::cuda {
namespace {

template <int kWidth, int kStep>
SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kAttentionThreads, 2)
    AttentionBackwardKernel(const AttentionBackwardArgs args, int key_blocks) {
  if (BlockX() < key_blocks) {
    KeyGradientsOfBlock<kWidth, kStep>(args, BlockX());
  } else {
    QueryGradientsOfBlock<kWidth, kStep>(args, BlockX() - key_blocks);
  }
}

template <int kWidth, int kStep>
cudaError_t LaunchBackward(cudaStream_t stream, const AttentionBackwardArgs& args) {
  const int64_t key_blocks = args.keys.blocks() * KeySizes<kWidth>::kParts;
  return Launch(stream, {.x = key_blocks + args.rows.blocks()}, kAttentionThreads,
                args.tiles.backward_bytes(), AttentionBackwardKernel<kWidth, kStep>, args,
                static_cast<int>(key_blocks));
}

}  // namespace

cudaError_t AttentionBackward(cudaStream_t stream, const AttentionBackwardArgs& args) {
  return WithWidth(args.tiles.width, [&]<int kWidth>() {
    constexpr int kMost = LargeAttentionTiles(kWidth).backward_step;
    constexpr int kLeast = SmallAttentionTiles(kWidth).backward_step;
    return args.tiles.backward_step == kMost ? LaunchBackward<kWidth, kMost>(stream, args)
                                             : LaunchBackward<kWidth, kLeast>(stream, args);
  });
}

}  // namespace shoal::worker::cuda
