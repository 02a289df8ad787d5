#include "tests/simulation/sim_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/base/check.h"
#include "fmt/format.h"

namespace shoal::simulation {
namespace {

using server::StateArray;

constexpr int64_t kPartitionBytes = 64 * 4;
constexpr float kGrain = 0x1p-7f;  // gradients are small multiples of it

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// A matrix, which decays, and a vector, which does not.
plan::UnitSpec MakeUnit(int index, plan::UnitKind kind, const char* name, int64_t matrix,
                        int64_t vector) {
  return {.index = index,
          .kind = kind,
          .name = name,
          .tensors = {{.name = fmt::format("{}.matrix", name), .rows = matrix / 16, .columns = 16},
                      {.name = fmt::format("{}.vector", name), .rows = vector, .offset = matrix}},
          .count = matrix + vector};
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::span<const float> Part(const std::vector<float>& all, size_t from, size_t count) {
  return std::span(all).subspan(from, count);
}

constexpr StateArray kArrays[] = {StateArray::kMaster, StateArray::kFirstMoment,
                                  StateArray::kSecondMoment};

std::span<const float> ArrayOf(const server::JobStore& store, size_t index, StateArray array) {
  std::vector<float> unused;  // the host's state is read in place
  return *store.Read(index, array, unused);
}

}  // namespace

SimModel::SimModel(uint64_t seed, int64_t growth) : seed_(seed) {
  units_ = {MakeUnit(0, plan::UnitKind::kEmbedding, "embedding", 176 * growth, 16),
            MakeUnit(1, plan::UnitKind::kHead, "head", 80 * growth, 16)};
  partitions_ = plan::BuildPartitions(units_, kPartitionBytes);
}

size_t SimModel::PlaceOf(const plan::PartitionSpec& partition) const {
  int64_t place = partition.offset;
  for (int unit = 0; unit < partition.unit; ++unit) {
    place += units_[static_cast<size_t>(unit)].count;
  }
  return static_cast<size_t>(place);
}

ModelState SimModel::Initial() const {
  ModelState state;
  std::vector<float>& master = state.of(StateArray::kMaster);
  for (const plan::UnitSpec& unit : units_) {
    for (int64_t i = 0; i < unit.count; ++i) {
      master.push_back(static_cast<float>(Mix(seed_ * 31 + master.size()) & 0xFF) * 0x1p-5f - 4);
    }
  }
  state.of(StateArray::kFirstMoment).resize(master.size());
  state.of(StateArray::kSecondMoment).resize(master.size());
  return state;
}

std::vector<float> SimModel::Gradient(std::span<const float> weights,
                                      std::span<const int64_t> samples) const {
  std::vector<float> gradient(weights.size(), 0.0f);
  for (const int64_t sample : samples) {
    uint64_t value = Mix(static_cast<uint64_t>(sample) + 1);
    for (size_t i = 0; i < gradient.size(); ++i) {
      value = value * 6364136223846793005 + 1442695040888963407;
      const uint32_t bits =
          (static_cast<uint32_t>(value >> 32) ^ std::bit_cast<uint32_t>(weights[i])) >> 8;
      gradient[i] += (static_cast<float>(bits & 0xFF) - 127) * kGrain;
    }
  }
  return gradient;
}

double SimModel::SumOfSquares(std::span<const float> gradient,
                              const plan::PartitionSpec& partition) const {
  double squares = 0;
  for (const float g : gradient.subspan(PlaceOf(partition), static_cast<size_t>(partition.count))) {
    squares += static_cast<double>(g) * g;
  }
  return squares;
}

double SimModel::GradNorm(std::span<const float> gradient) const {
  double squares = 0;
  for (const plan::PartitionSpec& partition : partitions_) {
    squares += SumOfSquares(gradient, partition);
  }
  return std::sqrt(squares);
}

ModelState SimModel::After(const ModelState& before, int64_t step, std::span<const int64_t> samples,
                           double learning_rate, const plan::TrainOptions& train) const {
  const std::vector<float> gradient = Gradient(before.of(StateArray::kMaster), samples);
  const auto clip =
      static_cast<float>(std::min(1.0, train.clip_norm / (GradNorm(gradient) + 1e-6)));
  const auto steps = static_cast<double>(step);
  const auto rate = static_cast<float>(learning_rate / (1 - std::pow(train.beta1, steps)));
  const auto correction = static_cast<float>(std::sqrt(1 - std::pow(train.beta2, steps)));
  ModelState after = before;
  auto& [master, m, v] = after.arrays;
  size_t i = 0;
  for (const plan::UnitSpec& unit : units_) {
    for (int64_t e = 0; e < unit.count; ++e, ++i) {
      const bool decays = e < unit.tensors[1].offset;
      const auto kept = static_cast<float>(decays ? 1 - learning_rate * train.weight_decay : 1.0);
      const float g = gradient[i] * clip;
      m[i] += (g - m[i]) * static_cast<float>(1 - train.beta1);
      v[i] = v[i] * static_cast<float>(train.beta2) + g * g * static_cast<float>(1 - train.beta2);
      const float scale = std::sqrt(v[i]) / correction + static_cast<float>(train.epsilon);
      master[i] = master[i] * kept - rate * (m[i] / scale);
    }
  }
  return after;
}

std::string DifferenceTo(const server::JobStore& store, const SimModel& model,
                         const ModelState& state) {
  for (size_t index = 0; index < store.held().size(); ++index) {
    const server::Partition& partition = *store.held()[index].partition;
    const size_t place = model.PlaceOf(partition.spec());
    const auto count = static_cast<size_t>(partition.spec().count);
    for (const StateArray array : kArrays) {
      if (!SameBits(ArrayOf(store, index, array), Part(state.of(array), place, count))) {
        return fmt::format("array {} of partition {}", static_cast<int>(array),
                           partition.spec().id);
      }
    }
    const std::byte* published = partition.memory().wire[store.version() % 2].host;
    const bool backup = published == nullptr;
    if (!backup && !SameBits({reinterpret_cast<const float*>(published), count},
                             Part(state.of(StateArray::kMaster), place, count))) {
      return fmt::format("what is published of partition {}", partition.spec().id);
    }
  }
  return "";
}

std::string WriteShard(const server::JobStore& store) {
  std::string shard;
  const auto add = [&shard](const void* data, size_t bytes) {
    shard.append(static_cast<const char*>(data), bytes);
  };
  for (size_t index = 0; index < store.held().size(); ++index) {
    const int id = store.held()[index].partition->spec().id;
    add(&id, sizeof(id));
    for (const StateArray array : kArrays) {
      const std::span<const float> values = ArrayOf(store, index, array);
      add(values.data(), values.size_bytes());
    }
  }
  return shard;
}

void ReadShard(const std::string& shard, const SimModel& model, ModelState& state) {
  size_t at = 0;
  const auto take = [&](void* to, size_t bytes) {
    SHOAL_CHECK(at + bytes <= shard.size());
    std::memcpy(to, shard.data() + at, bytes);
    at += bytes;
  };
  while (at < shard.size()) {
    int id = 0;
    take(&id, sizeof(id));
    const plan::PartitionSpec& partition = model.partitions()[static_cast<size_t>(id)];
    for (const StateArray array : kArrays) {
      take(state.of(array).data() + model.PlaceOf(partition),
           static_cast<size_t>(partition.count) * sizeof(float));
    }
  }
}

}  // namespace shoal::simulation
