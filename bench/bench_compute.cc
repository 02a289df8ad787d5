// Measures how fast the worker computes: its matrix products over oneDNN's at the same shapes, and
// a whole training microbatch (forward and backward of all operators, in model FLOPs) over that
// rate. Measures both sides of a ratio in turns in one run; the best round counts.
//
//   bench_compute [--shape 25m] [--tokens 512,2048] [--sequence 512] [--threads 2] [--rounds 5]
//   [--cpu-time] [--json]
//   bench_compute --model FOLDER    its microbatch alone, as JSON, for torch_families.py
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/threads/thread_pool.h"
#include "core/model/huggingface/hf_model.h"
#include "core/model/model_spec.h"
#include "fmt/format.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/model/access/memory_unit_access.h"
#include "worker/model/runner.h"
#include "worker/ops/cpu/cpu_ops.h"

namespace shoal::worker {
namespace {

struct Options {
  std::string shape = "25m";
  std::string model;  // a folder with config.json, in place of a shape
  std::vector<int64_t> tokens = {512, 2048};
  int64_t sequence = 512;
  int threads = 0;
  int rounds = 5;
  bool json = false;
  bool cpu_time = false;
  std::string only;
};

// Returns wall seconds, or this thread's CPU seconds for a busy machine.
double Now(bool cpu_time) {
  timespec now{};
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Seconds(const Options& options, const std::function<void()>& body) {
  const double begin = Now(options.cpu_time);
  body();
  return Now(options.cpu_time) - begin;
}

// A matrix product of training; `count` of them a microbatch.
struct Product {
  std::string name;
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  double count;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

std::vector<Product> Products(const plan::ModelSpec& spec, int64_t tokens) {
  struct Linear {
    const char* name;
    int64_t out, in;
    double count;
  };
  const auto layers = static_cast<double>(spec.layers);
  const Linear linears[] = {{"qkv", spec.attention().qkv_size(), spec.hidden, layers},
                            {"o", spec.hidden, spec.attention().q_size(), layers},
                            {"gate_up", 2 * spec.mlp().intermediate, spec.hidden, layers},
                            {"down", spec.hidden, spec.mlp().intermediate, layers}};
  std::vector<Product> products;
  for (const Linear& linear : linears) {
    const std::string name = linear.name;
    products.push_back(
        {name + " forward", tokens, linear.out, linear.in, false, true, false, linear.count});
    products.push_back(
        {name + " d_input", tokens, linear.in, linear.out, false, false, false, linear.count});
    products.push_back(
        {name + " d_weight", linear.out, linear.in, tokens, true, false, true, linear.count});
  }
  return products;
}

class Memory {
 public:
  Memory(Device& device, DType dtype, int64_t rows, int64_t columns, uint64_t seed)
      : buffer_(*device.Allocate(rows * columns * SizeOf(dtype))),
        view_(Matrix::Dense(buffer_.data(), dtype, rows, columns)) {
    Random random(seed);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const auto value = static_cast<float>(random.Uniform() - 0.5);
      if (dtype == DType::kF32) {
        view_.row<float>(0)[i] = value;
      } else {
        view_.row<BFloat16>(0)[i] = BFloat16(value);
      }
    }
  }
  Matrix view() const { return view_; }

 private:
  Buffer buffer_;
  Matrix view_;
};

// Runs the product in oneDNN as its own benchmark would: row-major operands, its threads,
// overwrites a result of the operands' type. Weight gradients are ADDED in FP32, as in training.
class Reference {
 public:
  Reference(const Product& p, DType dtype, const Memory& a, const Memory& b, const Memory& c,
            int threads)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    omp_set_num_threads(threads);
    using Memory = dnnl::memory;
    const auto type = dtype == DType::kF32 ? Memory::data_type::f32 : Memory::data_type::bf16;
    const auto strides = [](bool transposed, int64_t rows, int64_t columns) {
      return transposed ? Memory::dims{1, rows} : Memory::dims{columns, 1};
    };
    const Memory::desc a_desc({p.m, p.k}, type, strides(p.transpose_a, p.m, p.k));
    const Memory::desc b_desc({p.k, p.n}, type, strides(p.transpose_b, p.k, p.n));
    const Memory::desc c_desc({p.m, p.n}, p.accumulate ? Memory::data_type::f32 : type,
                              strides(false, p.m, p.n));
    dnnl::primitive_attr attributes;
    if (p.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(
        dnnl::matmul::desc(a_desc, b_desc, c_desc), attributes, engine_));
    arguments_ = {{DNNL_ARG_SRC, Memory(a_desc, engine_, a.view().data)},
                  {DNNL_ARG_WEIGHTS, Memory(b_desc, engine_, b.view().data)},
                  {DNNL_ARG_DST, Memory(c_desc, engine_, c.view().data)}};
  }
  void Run(int threads) {
    omp_set_num_threads(threads);
    primitive_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// Sums over all products of a microbatch; seconds of ours and of oneDNN's.
struct ProductTimes {
  double flops = 0;
  double ours = 0;
  double reference = 0;
};

ProductTimes TimeProducts(const Options& options, const plan::ModelSpec& spec, DType dtype,
                          int64_t tokens) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const std::unique_ptr<Ops> ops = MakeCpuOps(*device, options.threads);
  ProductTimes total;
  for (const Product& p : Products(spec, tokens)) {
    const Memory a(*device, dtype, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, 1);
    const Memory b(*device, dtype, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, 2);
    const Memory c(*device, p.accumulate ? DType::kF32 : dtype, p.m, p.n, 3);
    const MatmulArgs args{.a = a.view(),
                          .b = b.view(),
                          .c = c.view(),
                          .transpose_a = p.transpose_a,
                          .transpose_b = p.transpose_b,
                          .accumulate = p.accumulate};
    Reference reference(p, dtype, a, b, c, options.threads);
    const int repeats = std::max(1, static_cast<int>(2e9 / p.flops()));
    double ours = 1e9;
    double theirs = 1e9;
    for (int round = 0; round <= options.rounds; ++round) {  // the first warms up
      theirs = std::min(theirs, Seconds(options, [&] {
                                  for (int i = 0; i < repeats; ++i) {
                                    reference.Run(options.threads);
                                  }
                                }) / repeats);
      ours = std::min(ours, Seconds(options, [&] {
                              for (int i = 0; i < repeats; ++i) {
                                ops->Matmul(args);
                              }
                            }) / repeats);
    }
    fmt::print("  {:<18} {:>5} x {:>5} x {:>5}  {:>8.1f} GFLOP/s  oneDNN {:>8.1f}  ratio {:.2f}\n",
               p.name, p.m, p.n, p.k, p.flops() / ours * 1e-9, p.flops() / theirs * 1e-9,
               theirs / ours);
    total.flops += p.count * p.flops();
    total.ours += p.count * ours;
    total.reference += p.count * theirs;
  }
  return total;
}

double TimeMicrobatch(const Options& options, const plan::ModelSpec& spec, DType dtype,
                      int64_t tokens) {
  const auto model = *Transformer::Create(spec, {.compute = dtype, .threads = options.threads});
  Random random(1);
  MemoryUnitSource source =
      *MemoryUnitSource::Load(model->units(), dtype, [&](int, int64_t, std::span<float> out) {
        for (float& value : out) {
          value = static_cast<float>((random.Uniform() - 0.5) * 0.05);
        }
        return absl::OkStatus();
      });
  MemoryGradientSink sink(model->units());
  PackedBatch batch;
  for (int64_t begin = 0; begin < tokens; begin += options.sequence) {
    std::vector<int32_t> sequence(static_cast<size_t>(std::min(options.sequence, tokens - begin)));
    for (int32_t& token : sequence) {
      token = static_cast<int32_t>(random.Below(static_cast<uint64_t>(spec.vocabulary)));
    }
    batch.AppendNextToken(sequence);
  }
  double best = 1e9;
  for (int round = 0; round <= options.rounds; ++round) {
    best = std::min(
        best, Seconds(options, [&] {
          if (!RunMicrobatch(*model, batch, 1.0 / static_cast<double>(tokens), source, sink).ok()) {
            std::abort();
          }
        }));
  }
  return best;
}

// Prints what a microbatch takes, and nothing else.
absl::Status RunModel(const Options& options) {
  SHOAL_ASSIGN_OR_RETURN(const plan::ModelSpec spec, formats::ReadModelSpec(options.model));
  const DType dtype = options.only == Name(DType::kBF16) ? DType::kBF16 : DType::kF32;
  for (const int64_t tokens : options.tokens) {
    fmt::print(
        "{{\"benchmark\":\"microbatch\",\"family\":\"{}\",\"parameters\":{},"
        "\"compute\":\"{}\",\"tokens\":{},\"microbatch_ms\":{:.2f}}}\n",
        spec.family, plan::ParameterCount(spec), Name(dtype), tokens,
        1e3 * TimeMicrobatch(options, spec, dtype, tokens));
  }
  return absl::OkStatus();
}

void Run(const Options& options) {
  const plan::ModelSpec spec = *plan::NamedShape(options.shape);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (!options.only.empty() && options.only != Name(dtype)) {
      continue;
    }
    if (dtype == DType::kBF16 && !CpuHasFastBf16()) {
      fmt::print("BF16: this CPU has no native bf16, left out\n");
      continue;
    }
    for (const int64_t tokens : options.tokens) {
      fmt::print("{} {}, {} tokens in sequences of {}, {} threads\n", options.shape, Name(dtype),
                 tokens, std::min(tokens, options.sequence), options.threads);
      const ProductTimes products = TimeProducts(options, spec, dtype, tokens);
      const double reference_rate = products.flops / products.reference;
      const double seconds = TimeMicrobatch(options, spec, dtype, tokens);
      double flops = 0;
      for (int64_t begin = 0; begin < tokens; begin += options.sequence) {
        flops += 3 * plan::ForwardFlops(spec, std::min(options.sequence, tokens - begin));
      }
      const double rate = flops / seconds;
      fmt::print("  matrix products {:.1f} GFLOP/s, oneDNN {:.1f}: ratio {:.2f} (bar 0.85)\n",
                 products.flops / products.ours * 1e-9, reference_rate * 1e-9,
                 products.reference / products.ours);
      fmt::print(
          "  microbatch {:.1f} ms, {:.1f} model GFLOP/s: ratio {:.2f} of oneDNN's rate (bar "
          "0.60)\n",
          seconds * 1e3, rate * 1e-9, rate / reference_rate);
      if (options.json) {
        fmt::print(
            "{{\"benchmark\":\"compute\",\"shape\":\"{}\",\"compute\":\"{}\",\"tokens\":{},"
            "\"threads\":{},"
            "\"onednn_gflops\":{:.1f},\"matmul_ratio\":{:.3f},\"microbatch_ms\":{:.2f},"
            "\"microbatch_ratio\":{:.3f}}}\n",
            options.shape, Name(dtype), tokens, options.threads, reference_rate * 1e-9,
            products.reference / products.ours, seconds * 1e3, rate / reference_rate);
      }
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace shoal::worker

int main(int argc, char** argv) {
  shoal::worker::Options options;
  CLI::App app("Speed of the worker's mathematics, as ratios to oneDNN's own");
  app.add_option("--shape", options.shape, "a named model shape")
      ->check([](const std::string& name) {
        return shoal::plan::NamedShape(name) ? std::string() : "unknown shape";
      });
  app.add_option("--model", options.model, "a model's folder, for its microbatch alone")
      ->check(CLI::ExistingDirectory);
  app.add_option("--tokens", options.tokens, "tokens per microbatch")->delimiter(',');
  app.add_option("--sequence", options.sequence, "tokens per sequence");
  app.add_option("--threads", options.threads, "threads; 0: one per core");
  app.add_option("--rounds", options.rounds, "rounds, the best of which counts");
  app.add_flag("--cpu-time", options.cpu_time,
               "one thread, and its CPU time instead of the wall's: for a machine that is busy "
               "with other things");
  app.add_option("--only", options.only, "F32 or BF16 alone");
  app.add_flag("--json", options.json, "also a JSON line per case");
  CLI11_PARSE(app, argc, argv);
  if (options.cpu_time) {
    options.threads = 1;
  }
  if (options.threads == 0) {
    options.threads = shoal::AvailableCores();
  }
  if (options.model.empty()) {
    shoal::worker::Run(options);
  } else if (const absl::Status status = shoal::worker::RunModel(options); !status.ok()) {
    fmt::print(stderr, "{}\n", shoal::Message(status));
    return 2;
  }
  return 0;
}
