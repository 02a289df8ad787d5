// A test GPU's answers to calls that documents leave open; printed, for a real one.
#include "core/gpu/first_calls.h"

#include <algorithm>
#include <iostream>

#include "core/gpu/testing/gpu.h"
#include "gtest/gtest.h"

namespace shoal::gpu {
namespace {

TEST(FirstCalls, WhatMayBeWrittenIsPinnedWhateverElseIsNot) {
  if (!PrepareGpu(1)) {
    GTEST_SKIP() << "no GPU that can be used";
  }
  const std::vector<FirstCall> calls = TryFirstCalls();
  for (const FirstCall& call : calls) {
    std::cout << call.what << ": " << call.found << " (" << call.meaning << ")" << std::endl;
    EXPECT_FALSE(call.found.empty()) << call.what;
  }
  const auto found = [&](const std::string& what) {
    return std::ranges::find(calls, what, &FirstCall::what)->found;
  };
  EXPECT_EQ(found("pinning shared memory mapped for writing"), "cudaSuccess");
  const bool can = found("cudaDevAttrHostRegisterReadOnlySupported") == "1";
  EXPECT_EQ(found("the same as read-only") == "cudaSuccess", can);
}

}  // namespace
}  // namespace shoal::gpu
