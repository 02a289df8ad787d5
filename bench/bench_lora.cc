// Measures what training adapters in place of the model saves: tokens a second of a worker's
// microbatches (forward and backward, gradients written as for a push each), with adapters over
// without. Both in turns in one run; the median of the rounds' ratios counts. What servers do, and
// what travels, is not in it: of the whole model that is more. In the same rounds, which share of a
// step with adapters it takes to turn all blocks from NF4 (lora.quantize) twice, on one thread as a
// client does it.
//
//   bench_lora [--shape 124m] [--rank 16] [--tokens 1024] [--sequence 512] [--threads 2]
//   [--rounds 7] [--compute bf16]
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "core/base/random.h"
#include "core/base/threads/thread_pool.h"
#include "core/model/adapters.h"
#include "core/model/model_spec.h"
#include "core/model/nf4_partition.h"
#include "fmt/format.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/runner.h"

namespace shoal::worker {
namespace {

constexpr double kBar = 1.35;
constexpr double kShareBar = 0.15;

struct Options {
  std::string shape = "124m";
  std::string compute = "bf16";
  int64_t rank = 16;
  int64_t tokens = 1024;
  int64_t sequence = 512;
  int threads = 0;
  int rounds = 7;
};

// Wants what trains, as a first contribution each time.
class WrittenGradients final : public GradientSink {
 public:
  explicit WrittenGradients(const plan::ModelSpec& spec) {
    for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
      wanted_.push_back(spec.adapters.empty() || unit.kind == plan::UnitKind::kAdapter);
      gradients_.emplace_back(static_cast<size_t>(wanted_.back() ? unit.count : 0));
    }
  }
  bool Wants(int unit) override { return wanted_[static_cast<size_t>(unit)]; }
  absl::StatusOr<std::span<float>> Accumulator(int unit) override {
    return std::span<float>(gradients_[static_cast<size_t>(unit)]);
  }
  absl::StatusOr<UnitGradient> Gradient(int unit) override {
    // The embedding's own comes behind the head's, where they share a matrix.
    const bool empty = std::exchange(last_, unit) != unit || unit != 0;
    return UnitGradient{.sums = gradients_[static_cast<size_t>(unit)], .empty = empty};
  }
  absl::Status Done(int) override { return absl::OkStatus(); }

 private:
  std::vector<bool> wanted_;
  std::vector<std::vector<float>> gradients_;
  int last_ = -1;
};

class Trainer {
 public:
  Trainer(const plan::ModelSpec& spec, const Options& options)
      : model_(*Transformer::Create(
            spec, {.compute = options.compute == "bf16" ? DType::kBF16 : DType::kF32,
                   .threads = options.threads})),
        weights_(*MemoryUnitSource::Load(model_->units(), model_->compute(),
                                         [this](int, int64_t, std::span<float> out) {
                                           for (float& value : out) {
                                             value = static_cast<float>((random_.Uniform() - 0.5) *
                                                                        0.05);
                                           }
                                           return absl::OkStatus();
                                         })),
        gradients_(spec) {
    for (int64_t begin = 0; begin < options.tokens; begin += options.sequence) {
      std::vector<int32_t> tokens(
          static_cast<size_t>(std::min(options.sequence, options.tokens - begin)));
      for (int32_t& token : tokens) {
        token = static_cast<int32_t>(random_.Below(static_cast<uint64_t>(spec.vocabulary)));
      }
      batch_.AppendNextToken(tokens);
    }
  }

  double TokensPerSecond() {
    const absl::Time begin = absl::Now();
    const auto tokens = static_cast<double>(batch_.token_count());
    if (!RunMicrobatch(*model_, batch_, 1.0 / tokens, weights_, gradients_).ok()) {
      std::abort();
    }
    return tokens / absl::ToDoubleSeconds(absl::Now() - begin);
  }

 private:
  Random random_{1};
  const std::unique_ptr<Transformer> model_;
  MemoryUnitSource weights_;
  WrittenGradients gradients_;
  PackedBatch batch_;
};

// Turns all blocks from NF4 into the compute type.
class Dequantizer {
 public:
  Dequantizer(const plan::ModelSpec& spec, DType compute) : compute_(compute) {
    Random random(2);
    const auto read = [&random](int, int64_t, std::span<float> out) {
      for (float& value : out) {
        value = static_cast<float>((random.Uniform() - 0.5) * 0.05);
      }
      return absl::OkStatus();
    };
    for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
      if (unit.kind == plan::UnitKind::kBlock) {
        blocks_.push_back({.layout = plan::Nf4Partition(unit, 0, unit.count)});
        blocks_.back().wire.resize(static_cast<size_t>(blocks_.back().layout.bytes()));
        blocks_.back().layout.Encode(read, blocks_.back().wire.data()).IgnoreError();
        to_.resize(static_cast<size_t>(unit.count * SizeOf(compute)));
      }
    }
  }

  double Seconds() {
    const absl::Time begin = absl::Now();
    for (const Block& block : blocks_) {
      block.layout.Decode(block.wire.data(), compute_, to_.data());
    }
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }

 private:
  struct Block {
    plan::Nf4Partition layout;
    std::vector<std::byte> wire;
  };

  const DType compute_;
  std::vector<Block> blocks_;
  std::vector<std::byte> to_;
};

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void Run(const Options& options) {
  const plan::ModelSpec spec = *plan::NamedShape(options.shape);
  Trainer full(spec, options);
  Trainer adapted(*plan::WithAdapters(spec, {"all-linear"}, options.rank, 1), options);
  fmt::print("{} {}, rank {}, {} tokens in sequences of {}, {} threads\n", options.shape,
             options.compute, options.rank, options.tokens,
             std::min(options.tokens, options.sequence), options.threads);
  Dequantizer dequantizer(spec, options.compute == "bf16" ? DType::kBF16 : DType::kF32);
  full.TokensPerSecond();  // both warm up
  adapted.TokensPerSecond();
  std::vector<double> ratios;
  std::vector<double> shares;
  fmt::print("| round | whole model, tokens/s | adapters | ratio | NF4, of the step |\n");
  fmt::print("|---|---|---|---|---|\n");
  for (int round = 1; round <= options.rounds; ++round) {
    const double of_model = full.TokensPerSecond();
    const double of_adapters = adapted.TokensPerSecond();
    ratios.push_back(of_adapters / of_model);
    const double step_seconds = static_cast<double>(options.tokens) / of_adapters;
    shares.push_back(2 * dequantizer.Seconds() / step_seconds);
    fmt::print("| {} | {:.0f} | {:.0f} | {:.3f} | {:.1f} % |\n", round, of_model, of_adapters,
               ratios.back(), 100 * shares.back());
  }
  fmt::print("| median | | | **{:.3f}** (bar {:.2f}) | **{:.1f} %** (bar {:.0f} % at 4,096) |\n",
             Median(ratios), kBar, 100 * Median(shares), 100 * kShareBar);
}

}  // namespace
}  // namespace shoal::worker

int main(int argc, char** argv) {
  shoal::worker::Options options;
  CLI::App app("Tokens a second of training adapters over those of training the whole model");
  app.add_option("--shape", options.shape, "a named model shape")
      ->check([](const std::string& name) {
        return shoal::plan::NamedShape(name) ? std::string() : "unknown shape";
      });
  app.add_option("--rank", options.rank, "of the adapters, which all matrices of blocks have");
  app.add_option("--tokens", options.tokens, "tokens per microbatch");
  app.add_option("--sequence", options.sequence, "tokens per sequence");
  app.add_option("--threads", options.threads, "threads; 0: one per core");
  app.add_option("--rounds", options.rounds, "rounds, the median of which counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--compute", options.compute, "bf16 or fp32")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  CLI11_PARSE(app, argc, argv);
  if (options.threads == 0) {
    options.threads = shoal::AvailableCores();
  }
  shoal::worker::Run(options);
  return 0;
}
