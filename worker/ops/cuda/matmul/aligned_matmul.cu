#include "worker/ops/cuda/matmul/tensor_core_kernel.h"

namespace shoal::worker::cuda {
namespace {

template <class Tile>
cudaError_t LaunchTile(cudaStream_t stream, const MatmulLaunch& launch) {
  constexpr int kThreads = Tile::kThreads;
  using AInner = InnerMajor<Tile::kRows, kThreads, false>;
  using ACut = InnerMajor<Tile::kRows, kThreads, true>;
  using AOuter = OuterMajor<Tile::kRows, kThreads>;
  using BInner = InnerMajor<Tile::kColumns, kThreads, false>;
  using BOuter = OuterMajor<Tile::kColumns, kThreads>;
  if (launch.transpose_a) {
    return LaunchTensorCores<Tile, AOuter, BOuter>(stream, launch);
  }
  if (launch.transpose_b) {
    return LaunchTensorCores<Tile, AInner, BInner>(stream, launch);
  }
  if (launch.k() % kChunkElements != 0) {
    return LaunchTensorCores<Tile, ACut, BOuter>(stream, launch);
  }
  return LaunchTensorCores<Tile, AInner, BOuter>(stream, launch);
}

}  // namespace

cudaError_t AlignedMatmul(cudaStream_t stream, const MatmulLaunch& launch) {
  switch (launch.tile) {
    case MatmulTile::k64x64:
      return LaunchTile<Tile64x64>(stream, launch);
    case MatmulTile::k128x128:
      return LaunchTile<Tile128x128>(stream, launch);
    case MatmulTile::k128x256:
      return LaunchTile<Tile128x256>(stream, launch);
  }
  return cudaErrorInvalidValue;
}

}  // namespace shoal::worker::cuda
