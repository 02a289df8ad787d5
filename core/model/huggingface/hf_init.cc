#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/threads/thread_pool.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::formats {
namespace {

using plan::TensorSpec;
using plan::UnitSpec;

constexpr double kStandardDeviation = 0.02;
// Draws values in blocks, each with its own generator, so that any range can be drawn directly.
constexpr int64_t kBlock = 1024;
constexpr int64_t kGrain = 64 * kBlock;  // drawn by one thread at a time

// Writes elements [begin, end) of the tensor to `out`, each as `draw` makes it.
void FillRandom(const TensorSpec& tensor, absl::FunctionRef<double(Random&)> draw, uint64_t seed,
                int64_t begin, int64_t end, float* out) {
  const uint64_t tensor_seed = XXH3_64bits_withSeed(tensor.name.data(), tensor.name.size(), seed);
  for (int64_t block = begin / kBlock; block * kBlock < end; ++block) {
    Random random(tensor_seed, static_cast<uint64_t>(block));
    const int64_t first = block * kBlock;
    const int64_t last = std::min(first + kBlock, end);
    for (int64_t i = first; i < last; ++i) {
      const double value = draw(random);
      if (i >= begin) {
        *out++ = static_cast<float>(value);
      }
    }
  }
}

void FillTensor(const plan::ModelSpec& spec, const TensorSpec& tensor, uint64_t seed, int64_t begin,
                int64_t end, float* out) {
  if (tensor.rank() == 1) {
    const auto one = static_cast<float>(1 - spec.norm_offset);
    std::fill(out, out + (end - begin), plan::IsNorm(tensor.role) ? one : 0.0F);
    return;
  }
  if (tensor.role == plan::Role::kLoraA) {
    const double bound = 1 / std::sqrt(static_cast<double>(tensor.columns));
    FillRandom(
        tensor, [bound](Random& random) { return bound * (2 * random.Uniform() - 1); }, seed, begin,
        end, out);
    return;
  }
  if (tensor.role == plan::Role::kLoraB) {
    std::fill(out, out + (end - begin), 0.0F);
    return;
  }
  const double deviation =
      plan::IsToResidual(tensor.role)
          ? kStandardDeviation / std::sqrt(2.0 * static_cast<double>(spec.layers))
          : kStandardDeviation;
  FillRandom(
      tensor, [deviation](Random& random) { return deviation * random.Normal(); }, seed, begin, end,
      out);
}

}  // namespace

plan::UnitReader InitialWeights(const plan::ModelSpec& spec, uint64_t seed) {
  return [spec, units = plan::BuildUnits(spec), seed](int unit, int64_t offset,
                                                      std::span<float> out) -> absl::Status {
    const auto count = static_cast<int64_t>(out.size());
    if (unit < 0 || static_cast<size_t>(unit) >= units.size() || offset < 0 ||
        offset > units[static_cast<size_t>(unit)].count - count) {
      return OutOfRange("unit {} has no elements {} to {}", unit, offset, offset + count);
    }
    std::fill(out.begin(), out.end(), 0.0F);  // padding
    for (const TensorSpec& tensor : units[static_cast<size_t>(unit)].tensors) {
      const int64_t begin = std::max(offset, tensor.offset);
      const int64_t end = std::min(offset + count, tensor.offset + tensor.count());
      if (begin < end) {
        FillTensor(spec, tensor, seed, begin - tensor.offset, end - tensor.offset,
                   out.data() + (begin - offset));
      }
    }
    return absl::OkStatus();
  };
}

absl::Status InitHfModel(const std::string& folder, const plan::ModelSpec& spec, uint64_t seed,
                         const HfWriteOptions& options) {
  if (absl::Status status = plan::Validate(spec); !status.ok()) {
    return Annotate(status, folder);
  }
  // Drawing takes far longer than writing.
  ThreadPool pool(0);
  const plan::UnitReader draw = InitialWeights(spec, seed);
  const auto draw_at_once = [&](int unit, int64_t offset, std::span<float> out) -> absl::Status {
    const auto count = static_cast<int64_t>(out.size());
    std::vector<absl::Status> drawn(static_cast<size_t>((count + kGrain - 1) / kGrain));
    pool.ParallelFor(count, kGrain, [&](int64_t begin, int64_t end) {
      drawn[static_cast<size_t>(begin / kGrain)] =
          draw(unit, offset + begin,
               out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    });
    for (absl::Status& status : drawn) {
      SHOAL_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  };
  return WriteHfModel(folder, spec, draw_at_once, options);
}

}  // namespace shoal::formats
