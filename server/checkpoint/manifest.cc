#include <xxhash.h>

#include <charconv>
#include <string_view>

#include "core/base/json/json.h"
#include "core/base/status.h"
#include "core/model/adapters.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::server {
namespace {

constexpr int kFormat = 1;
constexpr std::string_view kNf4 = "nf4";  // of the model's blocks, while it trains

std::string Hex(uint64_t value) { return fmt::format("{:016x}", value); }

bool ParseHex(const std::string& text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, 16);
  return error == std::errc() && end == text.data() + text.size() && text.size() == 16;
}

uint64_t HashWithoutHash(Json document) {
  document.erase("hash");
  const std::string text = document.dump();
  return XXH3_64bits(text.data(), text.size());
}

absl::StatusOr<ShardEntry> ParseShardEntry(const Json& entry, const std::string& file_name) {
  ShardEntry shard;
  shard.file = entry.at("file").get<std::string>();
  shard.bytes = entry.at("bytes").get<int64_t>();
  shard.partitions = entry.at("partitions").get<std::vector<int>>();
  if (!ParseHex(entry.at("hash").get<std::string>(), &shard.hash) || shard.bytes < 0) {
    return DataLoss("{}: the entry of shard '{}' is malformed", file_name, shard.file);
  }
  if (shard.file.empty() || shard.file.front() == '.' ||
      shard.file.find('/') != std::string::npos) {
    return DataLoss("{}: '{}' is not a shard's file name", file_name, shard.file);
  }
  return shard;
}

absl::StatusOr<BaseModel> ParseBase(const Json& json, const std::string& file_name) {
  BaseModel base = {.folder = json.at("folder").get<std::string>()};
  for (const Json& entry : json.at("files")) {
    formats::ModelFile& file = base.files.emplace_back();
    file.name = entry.at("file").get<std::string>();
    file.bytes = entry.at("bytes").get<int64_t>();
    if (!ParseHex(entry.at("fingerprint").get<std::string>(), &file.fingerprint)) {
      return DataLoss("{}: malformed: base", file_name);
    }
  }
  if (base.files.empty()) {
    return DataLoss("{}: malformed: base names no files", file_name);
  }
  return base;
}

absl::StatusOr<Manifest> FromJson(const Json& document, const std::string& file_name,
                                  uint64_t* job_hash) {
  if (document.at("format").get<int>() != kFormat) {
    return InvalidArgument("{}: checkpoint format {}, this program reads {}", file_name,
                           document.at("format").dump(), kFormat);
  }
  uint64_t hash = 0;
  if (!ParseHex(document.at("hash").get<std::string>(), &hash) ||
      hash != HashWithoutHash(document)) {
    return DataLoss("{}: damaged (its hash does not match its content)", file_name);
  }
  Manifest manifest;
  manifest.step = document.at("step").get<int64_t>();
  manifest.loss = document.at("loss").get<double>();
  if (manifest.step < 0 || !ParseHex(document.at("job_hash").get<std::string>(), job_hash)) {
    return DataLoss("{}: malformed", file_name);
  }
  if (document.contains("validation")) {
    const Json& result = document.at("validation");
    manifest.validation = {.step = result.at("step").get<int64_t>(),
                           .loss = result.at("loss").get<double>(),
                           .best_step = result.at("best_step").get<int64_t>(),
                           .best_loss = result.at("best_loss").get<double>(),
                           .since_best = result.at("since_best").get<int64_t>()};
  }
  if (document.contains("norms")) {
    const Json& norms = document.at("norms");
    manifest.norms = {.mean = norms.at("mean").get<double>(),
                      .steps = norms.at("steps").get<int64_t>(),
                      .skipped_in_a_row = norms.at("skipped_in_a_row").get<int64_t>()};
  }
  const Json& model = document.at("model");
  SHOAL_ASSIGN_OR_RETURN(manifest.spec, formats::ParseModelSpec(model.dump(), file_name));
  if (document.contains("adapters")) {
    plan::ModuleAdapters adapters;
    for (const auto& [module, adapter] : document.at("adapters").items()) {
      adapters[module] = {.rank = adapter.at("rank").get<int64_t>(),
                          .scale = adapter.at("scale").get<double>()};
    }
    auto with_adapters = plan::WithModuleAdapters(std::move(manifest.spec), adapters);
    SHOAL_RETURN_IF_ERROR(Annotate(with_adapters.status(), fmt::format("{}: adapters", file_name)));
    manifest.spec = *std::move(with_adapters);
  }
  if (document.contains("quantize")) {
    const Json& type = document.at("quantize");
    if (type != Json(kNf4)) {
      return InvalidArgument("{}: quantize: {} is not supported; \"nf4\" is", file_name,
                             type.dump().substr(0, 60));
    }
    if (manifest.spec.adapters.empty()) {
      return DataLoss("{}: quantize: there are no adapters", file_name);
    }
    manifest.spec.quantize = plan::Quantize::kNf4;
  }
  if (document.contains("base")) {
    if (manifest.spec.adapters.empty()) {
      return DataLoss("{}: malformed: base", file_name);
    }
    manifest.spec.from_files = true;
    SHOAL_ASSIGN_OR_RETURN(manifest.base, ParseBase(document.at("base"), file_name));
  }
  manifest.special = {.bos = document.at("bos").get<int64_t>(),
                      .eos = document.at("eos").get<int64_t>()};
  for (const Json& entry : document.at("shards")) {
    SHOAL_ASSIGN_OR_RETURN(ShardEntry shard, ParseShardEntry(entry, file_name));
    manifest.shards.push_back(std::move(shard));
  }
  return manifest;
}

}  // namespace

std::string ManifestToJson(const Manifest& manifest, uint64_t job_hash) {
  Json shards = Json::array();
  for (const ShardEntry& shard : manifest.shards) {
    shards.push_back({{"file", shard.file},
                      {"bytes", shard.bytes},
                      {"hash", Hex(shard.hash)},
                      {"partitions", shard.partitions}});
  }
  Json document = {
      {"format", kFormat},
      {"step", manifest.step},
      {"loss", manifest.loss},
      {"model",
       Json::parse(formats::ModelSpecToJson(manifest.spec, DType::kF32, manifest.special))},
      {"bos", manifest.special.bos},
      {"eos", manifest.special.eos},
      {"job_hash", Hex(job_hash)},
      {"shards", shards},
  };
  if (!manifest.spec.adapters.empty()) {
    for (const auto& [module, adapter] : plan::AdaptersByModule(manifest.spec)) {
      document["adapters"][module] = {{"rank", adapter.rank}, {"scale", adapter.scale}};
    }
  }
  if (manifest.spec.quantize == plan::Quantize::kNf4) {
    document["quantize"] = kNf4;
  }
  if (manifest.spec.from_files) {
    Json files = Json::array();
    for (const formats::ModelFile& file : manifest.base.files) {
      files.push_back(
          {{"file", file.name}, {"bytes", file.bytes}, {"fingerprint", Hex(file.fingerprint)}});
    }
    document["base"] = {{"folder", manifest.base.folder}, {"files", files}};
  }
  if (manifest.validation.has_value()) {
    document["validation"] = {{"step", manifest.validation->step},
                              {"loss", manifest.validation->loss},
                              {"best_step", manifest.validation->best_step},
                              {"best_loss", manifest.validation->best_loss},
                              {"since_best", manifest.validation->since_best}};
  }
  if (manifest.norms.steps > 0 || manifest.norms.skipped_in_a_row > 0) {
    document["norms"] = {{"mean", manifest.norms.mean},
                         {"steps", manifest.norms.steps},
                         {"skipped_in_a_row", manifest.norms.skipped_in_a_row}};
  }
  document["hash"] = Hex(HashWithoutHash(document));
  return document.dump(1) + "\n";
}

absl::StatusOr<Manifest> ParseManifest(const std::string& text, const std::string& file_name,
                                       uint64_t* job_hash) {
  const absl::StatusOr<Json> document = ParseJson(text, file_name);
  if (!document.ok()) {
    return DataLoss("{}", Message(document.status()));
  }
  try {
    return FromJson(*document, file_name, job_hash);
  } catch (const Json::exception& error) {
    return DataLoss("{}: malformed: {}", file_name, error.what());
  }
}

}  // namespace shoal::server
