// What a run's samples were written with that its job does not say: kept in the folder of its token
// files, so that the run goes on with the same tokens when it is resumed.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::worker {

struct Rendering {
  std::string chat_template;  // ChatTemplate::Signature
  std::string day;            // "2026-11-27", as strftime_now tells it; empty: nobody asks

  bool operator==(const Rendering&) const = default;
};

// nullopt if there is none.
absl::StatusOr<std::optional<Rendering>> ReadRendering(const std::string& folder);
absl::Status WriteRendering(const std::string& folder, const Rendering& rendering);

}  // namespace shoal::worker
