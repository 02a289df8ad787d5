// Training as plainly as it can be written: one process, one sample at a time, no service, AdamW in
// double. What the cluster is held against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/job.h"

namespace shoal::testing {

struct ReferenceRun {
  std::vector<double> losses;               // by step
  std::vector<double> grad_norms;           // before clipping
  std::vector<std::vector<float>> weights;  // by unit
};

// What the loss is divided by.
enum class Normaliser {
  kMinibatchTargets,
  kMeanOfThreeWorkers,  // a mistake: thirds of the minibatch averaged by themselves, then those
};
absl::StatusOr<ReferenceRun> TrainReference(const plan::Job& job, const std::string& token_file,
                                            Normaliser normaliser = Normaliser::kMinibatchTargets);

// A token file with samples of uneven lengths (2 to about max_tokens) whose tokens follow a pattern
// that can be learnt; loss on most of them.
absl::Status WriteSyntheticTokens(const std::string& path, int64_t vocabulary, int64_t samples,
                                  int64_t max_tokens, uint64_t seed);

}  // namespace shoal::testing
