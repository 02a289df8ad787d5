#include "core/data/rendering.h"

#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/status.h"

namespace shoal::worker {

std::string RenderingFile(const std::string& folder) { return folder + "/rendering.json"; }

absl::StatusOr<std::optional<Rendering>> ReadRendering(const std::string& folder) {
  const std::string path = RenderingFile(folder);
  const absl::StatusOr<Json> json = ReadJson(path);
  if (absl::IsNotFound(json.status())) {
    return std::nullopt;
  }
  SHOAL_RETURN_IF_ERROR(json.status());
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(*json, path));
  Rendering rendering;
  SHOAL_ASSIGN_OR_RETURN(rendering.chat_template, object.StringOr("template", ""));
  SHOAL_ASSIGN_OR_RETURN(rendering.tokenizer, object.StringOr("tokenizer", ""));
  SHOAL_ASSIGN_OR_RETURN(rendering.day, object.StringOr("day", ""));
  if (object.Find("weights") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(rendering.weights, object.BoolOr("weights", false));
  }
  return rendering;
}

absl::Status WriteRendering(const std::string& folder, const Rendering& rendering) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(folder));
  Json json = {{"template", rendering.chat_template},
               {"tokenizer", rendering.tokenizer},
               {"day", rendering.day}};
  if (rendering.weights.has_value()) {
    json["weights"] = *rendering.weights;
  }
  return WriteFileAtomically(RenderingFile(folder), json.dump() + "\n");
}

}  // namespace shoal::worker
