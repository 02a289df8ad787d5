// A fixture with a job that trains a tiny model in seconds, in a folder of the running test's own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "tests/in_process/cluster.h"
#include "tests/in_process/reference.h"

namespace shoal::testing {

class TinyJobTest : public ::testing::Test {
 protected:
  // In fp32, with weights that travel as such.
  TinyJobTest();
  ~TinyJobTest() override;

  // The job's model and samples from now on, in place of those of shape "tiny" with 40 samples of
  // up to 120 tokens. A microbatch holds one of the longest.
  void MakeModel(const plan::ModelSpec& spec);
  void MakeSamples(int64_t samples, int64_t max_tokens);

  ClusterRun Run(const ClusterOptions& options) { return TrainToEnd(job_, tokens_, options); }
  static void ExpectSameBits(const ClusterRun& run, const ClusterRun& other);
  // The plain loop's losses, norms and weights.
  static void ExpectSame(const ClusterRun& run, const ReferenceRun& reference);

  const std::filesystem::path folder_;
  const std::string tokens_;
  plan::Job job_;

 private:
  int64_t vocabulary_ = 0;
};

}  // namespace shoal::testing
