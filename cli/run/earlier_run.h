// What an earlier run left in a checkpoint directory, kept aside in DIRECTORY/earlier-run until the
// run that takes its place has committed a step. A run that ends before that costs nothing: it
// comes back. Used under the run's lock.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::cli {

class EarlierRun {
 public:
  // For what a `shoal train` that was killed left: brings back what it had set aside, or removes
  // that where its run had got as far as a checkpoint. Call before anything looks into `directory`.
  static absl::Status Recover(const std::string& directory);
  // Sets aside what its samples were made with (worker::RenderingFile), and the complete
  // checkpoints of steps after `step`; with -1 all, and the model that was exported.
  static absl::StatusOr<EarlierRun> SetAside(const std::string& directory, int64_t step);

  EarlierRun(EarlierRun&& other) noexcept;
  EarlierRun& operator=(EarlierRun&&) = delete;
  ~EarlierRun();  // brings it back, unless Remove was called

  absl::Status Remove();

 private:
  explicit EarlierRun(std::string directory) : directory_(std::move(directory)) {}
  std::string directory_;  // empty: nothing is aside
};

}  // namespace shoal::cli
