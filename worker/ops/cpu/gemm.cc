#include "worker/ops/cpu/gemm.h"

#include <omp.h>

#include <cstdlib>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "core/base/bf16.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "worker/ops/cpu/amx_gemm.h"
#include "worker/ops/cpu/instructions.h"

namespace shoal::worker::cpu {
namespace {

using DnnlType = dnnl::memory::data_type;

dnnl::engine& Engine() {
  static auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // never destroyed
  return *engine;
}

DnnlType TypeOf(DType dtype) { return dtype == DType::kF32 ? DnnlType::f32 : DnnlType::bf16; }

// Makes OpenMP answer one thread, which oneDNN asks when it compiles and when it runs a kernel.
void UseOneThread() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

// Working memory of the kernels that run on this thread.
void* Scratchpad(size_t bytes) {
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  thread_local std::unique_ptr<void, Free> data;
  thread_local size_t capacity = 0;
  if (bytes > capacity) {
    constexpr size_t kPage = 4096;
    capacity = (bytes + kPage - 1) / kPage * kPage;
    data.reset();
    data.reset(std::aligned_alloc(kPage, capacity));
    if (data == nullptr) {
      capacity = 0;
      throw std::bad_alloc();
    }
  }
  return data.get();
}

// Copies rows of bf16 to fp32, one after the other.
const float* Widen(const void* from, int64_t rows, int64_t columns, int64_t stride,
                   std::vector<float>& to) {
  to.resize(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    Convert(
        std::span(static_cast<const BFloat16*>(from) + row * stride, static_cast<size_t>(columns)),
        to.data() + row * columns);
  }
  return to.data();
}

}  // namespace

class GemmKernel {
 public:
  explicit GemmKernel(const GemmShape& shape) {
    const dnnl::memory::desc a({shape.m, shape.k}, TypeOf(shape.input),
                               Strides(shape.a_stride, shape.transpose_a));
    const dnnl::memory::desc b({shape.k, shape.n}, TypeOf(shape.input),
                               Strides(shape.b_stride, shape.transpose_b));
    const dnnl::memory::desc c({shape.m, shape.n}, TypeOf(shape.output),
                               Strides(shape.c_stride, false));
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (shape.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes,
                                                   Engine());
    primitive_ = dnnl::matmul(description);
    a_ = a;
    b_ = b;
    c_ = c;
    scratchpad_ = description.scratchpad_desc();
  }

  void Run(const void* a, const void* b, void* c) const {
    thread_local dnnl::stream stream(Engine());
    const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, Engine(),
                          const_cast<void*>(data));  // oneDNN's arguments are not const
    };
    const dnnl::memory arguments[] = {memory(a_, a), memory(b_, b), memory(c_, c),
                                      memory(scratchpad_, Scratchpad(scratchpad_.get_size()))};
    const dnnl_exec_arg_t named[] = {{DNNL_ARG_SRC, arguments[0].get()},
                                     {DNNL_ARG_WEIGHTS, arguments[1].get()},
                                     {DNNL_ARG_DST, arguments[2].get()},
                                     {DNNL_ARG_SCRATCHPAD, arguments[3].get()}};
    dnnl::error::wrap_c_api(dnnl_primitive_execute(primitive_.get(), stream.get(), 4, named),
                            "cannot run");
  }

 private:
  static dnnl::memory::dims Strides(int64_t stride, bool transposed) {
    return transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  }

  dnnl::matmul primitive_;
  dnnl::memory::desc a_;
  dnnl::memory::desc b_;
  dnnl::memory::desc c_;
  dnnl::memory::desc scratchpad_;
};

GemmCache::GemmCache(int64_t capacity) : capacity_(capacity) { SHOAL_CHECK(capacity > 0); }
GemmCache::~GemmCache() = default;

std::shared_ptr<const GemmKernel> GemmCache::Get(const GemmShape& shape) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = kernels_.find(shape); found != kernels_.end()) {
    by_use_.splice(by_use_.begin(), by_use_, found->second.use);
    return found->second.kernel;
  }
  auto kernel = std::make_shared<const GemmKernel>(shape);
  ++compiled_;
  by_use_.push_front(shape);
  kernels_[shape] = Entry{kernel, by_use_.begin()};
  if (static_cast<int64_t>(kernels_.size()) > capacity_) {
    kernels_.erase(by_use_.back());
    by_use_.pop_back();
  }
  return kernel;
}

void GemmCache::Run(const GemmShape& shape, const void* a, const void* b, void* c) {
  if (AmxTakes(shape)) {
    RunOnAmx(shape, a, b, c);
    return;
  }
  static const bool multiplies_bf16 = OneDnnMultipliesBf16();
  try {
    UseOneThread();
    if (shape.input == DType::kBF16 && !multiplies_bf16) {
      RunWidened(shape, a, b, c);
    } else {
      Get(shape)->Run(a, b, c);
    }
  } catch (const std::exception& error) {  // dnnl::error or bad_alloc
    Fail(shape, error.what());
  }
}

void GemmCache::RunWidened(const GemmShape& shape, const void* a, const void* b, void* c) {
  thread_local std::vector<float> wide_a;
  thread_local std::vector<float> wide_b;
  thread_local std::vector<float> wide_c;
  GemmShape wide = shape;
  wide.input = wide.output = DType::kF32;
  wide.a_stride = shape.transpose_a ? shape.m : shape.k;
  wide.b_stride = shape.transpose_b ? shape.k : shape.n;
  const float* const of_a =
      Widen(a, shape.transpose_a ? shape.k : shape.m, wide.a_stride, shape.a_stride, wide_a);
  const float* const of_b =
      Widen(b, shape.transpose_b ? shape.n : shape.k, wide.b_stride, shape.b_stride, wide_b);
  if (shape.output == DType::kF32) {
    Get(wide)->Run(of_a, of_b, c);
    return;
  }
  wide.c_stride = shape.n;
  wide_c.resize(static_cast<size_t>(shape.m * shape.n));
  Get(wide)->Run(of_a, of_b, wide_c.data());
  for (int64_t row = 0; row < shape.m; ++row) {
    Convert(std::span<const float>(wide_c).subspan(static_cast<size_t>(row * shape.n),
                                                   static_cast<size_t>(shape.n)),
            static_cast<BFloat16*>(c) + row * shape.c_stride);
  }
}

void GemmCache::RunOnAmx(const GemmShape& shape, const void* a, const void* b, void* c) {
  try {
    AmxGemm(shape, a, b, c);
  } catch (const std::bad_alloc& error) {
    Fail(shape, error.what());
  }
}

void GemmCache::Fail(const GemmShape& shape, const char* reason) {
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) {
    status_ = ResourceExhausted("matrix product {}x{}x{} of {}: {}; lower microbatch_tokens",
                                shape.m, shape.n, shape.k, Name(shape.input), reason);
  }
}

absl::Status GemmCache::TakeStatus() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(status_, absl::OkStatus());
}

int64_t GemmCache::compiled() const {
  absl::MutexLock lock(&mutex_);
  return compiled_;
}

}  // namespace shoal::worker::cpu
