// manifest.json, which makes a checkpoint complete. Parsed as hostile input.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::server {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kJobFile[] = "job.yaml";

// `job_hash` is the XXH3-64 of job.yaml. The text ends in a hash of itself, so that a damaged
// manifest is recognised.
std::string ManifestToJson(const Manifest& manifest, uint64_t job_hash);
absl::StatusOr<Manifest> ParseManifest(const std::string& json, const std::string& file_name,
                                       uint64_t* job_hash);

}  // namespace shoal::server
