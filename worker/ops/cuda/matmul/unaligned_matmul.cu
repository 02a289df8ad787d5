#include "worker/ops/cuda/matmul/tensor_core_kernel.h"

namespace shoal::worker::cuda {

cudaError_t UnalignedMatmul(cudaStream_t stream, const MatmulLaunch& launch) {
  using Tile = Tile64x64;
  return LaunchTensorCores<Tile, Unaligned<Tile::kRows, Tile::kThreads>,
                           Unaligned<Tile::kColumns, Tile::kThreads>>(stream, launch);
}

}  // namespace shoal::worker::cuda
