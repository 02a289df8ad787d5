// What a run's samples were made with that its job does not say: kept in the folder of its token
// files, so that the run goes on with the same tokens and weights when it is resumed.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::worker {

struct Rendering {
  std::string chat_template;    // SampleEncoder::Signature; empty: there is none
  std::string tokenizer;        // its hash; empty: there is none
  std::string day;              // ChatTemplate::day; empty: nobody asks
  std::optional<bool> weights;  // whether any sample has some; not known of older runs

  bool operator==(const Rendering&) const = default;
};

// Of `folder`.
std::string RenderingFile(const std::string& folder);

// nullopt if there is none.
absl::StatusOr<std::optional<Rendering>> ReadRendering(const std::string& folder);
absl::Status WriteRendering(const std::string& folder, const Rendering& rendering);

}  // namespace shoal::worker
