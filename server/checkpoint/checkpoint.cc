#include "server/checkpoint/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/base/call_once.h"
#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/data/template_file.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/peft_adapter.h"
#include "core/model/merged_weights.h"
#include "server/checkpoint/record_cache.h"
#include "server/checkpoint/shard_reader.h"

namespace shoal::server {
namespace {

absl::StatusOr<Manifest> ReadManifest(const std::string& folder, uint64_t* job_hash) {
  const std::string path = fmt::format("{}/{}", folder, kManifestFile);
  auto text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    return NotFound("{} is not a complete checkpoint: it has no {}", folder, kManifestFile);
  }
  SHOAL_RETURN_IF_ERROR(text.status());
  return ParseManifest(*text, path, job_hash);
}

absl::StatusOr<std::string> ReadJob(const std::string& folder, uint64_t job_hash) {
  const std::string path = fmt::format("{}/{}", folder, kJobFile);
  SHOAL_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  if (XXH3_64bits(text.data(), text.size()) != job_hash) {
    return DataLoss("{}: damaged: it does not match the manifest", path);
  }
  return text;
}

// Puts the job's chat template in place of the tokenizer's.
absl::Status PutTemplate(const std::string& output, const ExportOptions& options) {
  if (options.tokenizer_folder.empty() || options.chat_template == "auto") {
    return absl::OkStatus();
  }
  const auto replaced = worker::WriteTemplate(output, options.chat_template);
  if (absl::IsNotFound(replaced.status())) {
    LogWarning("{}: its chat template is not the job's: {}", output, Message(replaced.status()));
    return absl::OkStatus();
  }
  SHOAL_RETURN_IF_ERROR(replaced.status());
  if (!replaced->empty()) {
    LogWarning("{}: its chat template is {}, as the job says, in place of that of {}", output,
               options.chat_template, options.tokenizer_folder);
  }
  return absl::OkStatus();
}

}  // namespace

struct Checkpoint::State {
  struct Piece {
    const ShardReader* shard = nullptr;
    ShardRecord record;
  };

  std::string folder;
  Manifest manifest;
  uint64_t job_hash = 0;
  std::vector<std::unique_ptr<ShardReader>> shards;
  std::map<std::pair<int, int64_t>, Piece> pieces;  // by unit and first element
  std::vector<bool> in_base;                        // by unit
  mutable RecordCache cache;
  mutable absl::once_flag base_opened;
  mutable absl::StatusOr<std::unique_ptr<formats::HfModel>> base;

  absl::Status ReadBase(int unit, int64_t offset, std::span<float> out) const {
    absl::call_once(base_opened, [this] {
      base = formats::OpenSame(manifest.base.folder, manifest.base.files);
    });
    SHOAL_RETURN_IF_ERROR(Annotate(
        base.status(), fmt::format("{} holds adapters alone, put the model that they were trained "
                                   "with back in its folder",
                                   folder)));
    return (*base)->ReadUnit(unit, offset, out);
  }

  // Checks that every element of every unit is there exactly once, but for what is in the base.
  absl::Status CheckCoverage() const {
    std::vector<int64_t> covered;
    for (const plan::UnitSpec& unit : plan::BuildUnits(manifest.spec)) {
      covered.push_back(in_base[static_cast<size_t>(unit.index)] ? 0 : unit.count);
    }
    std::vector<int64_t> end(covered.size(), 0);
    for (const auto& [key, piece] : pieces) {
      const plan::PartitionSpec& partition = piece.record.partition;
      if (static_cast<size_t>(partition.unit) >= end.size() ||
          end[static_cast<size_t>(partition.unit)] != partition.offset) {
        return DataLoss("{}: partition {} of unit {} does not continue what is before it", folder,
                        partition.id, partition.unit);
      }
      end[static_cast<size_t>(partition.unit)] += partition.count;
    }
    if (end != covered) {
      return DataLoss("{}: the shards do not hold the whole model", folder);
    }
    return absl::OkStatus();
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::~Checkpoint() = default;

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& folder) {
  auto state = std::make_unique<State>();
  state->folder = folder;
  SHOAL_ASSIGN_OR_RETURN(state->manifest, ReadManifest(folder, &state->job_hash));
  for (const ShardEntry& entry : state->manifest.shards) {
    SHOAL_ASSIGN_OR_RETURN(auto shard, ShardReader::Open(folder, entry, state->manifest.step));
    for (const ShardRecord& record : shard->records()) {
      const plan::PartitionSpec& partition = record.partition;
      if (!state->pieces
               .emplace(std::pair(partition.unit, partition.offset),
                        State::Piece{.shard = shard.get(), .record = record})
               .second) {
        return DataLoss("{}/{}: partition {} is in two shards", folder, entry.file, partition.id);
      }
    }
    state->shards.push_back(std::move(shard));
  }
  for (const plan::UnitSpec& unit : plan::BuildUnits(state->manifest.spec)) {
    state->in_base.push_back(state->manifest.spec.from_files &&
                             unit.kind != plan::UnitKind::kAdapter);
  }
  SHOAL_RETURN_IF_ERROR(state->CheckCoverage());
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(state)));
}

const Manifest& Checkpoint::manifest() const { return state_->manifest; }
const std::string& Checkpoint::folder() const { return state_->folder; }
absl::StatusOr<std::string> Checkpoint::JobYaml() const {
  return ReadJob(state_->folder, state_->job_hash);
}

absl::Status Checkpoint::Read(Section section, int unit, int64_t offset,
                              std::span<float> out) const {
  return ReadBy(state_->cache, section, unit, offset, out);
}

absl::Status Checkpoint::ReadOnce(Section section, int unit, int64_t offset,
                                  std::span<float> out) const {
  RecordCache cache;
  return ReadBy(cache, section, unit, offset, out);
}

absl::Status Checkpoint::ReadBy(RecordCache& cache, Section section, int unit, int64_t offset,
                                std::span<float> out) const {
  if (unit >= 0 && unit < std::ssize(state_->in_base) &&
      state_->in_base[static_cast<size_t>(unit)]) {
    if (section == Section::kMaster) {
      return state_->ReadBase(unit, offset, out);
    }
    std::ranges::fill(out, 0.0F);
    return absl::OkStatus();
  }
  auto next = state_->pieces.upper_bound({unit, offset});
  if (next == state_->pieces.begin()) {
    return OutOfRange("{}: unit {} is not in this checkpoint", state_->folder, unit);
  }
  --next;
  while (!out.empty()) {
    if (next == state_->pieces.end() || next->second.record.partition.unit != unit) {
      return OutOfRange("{}: unit {} ends before element {}", state_->folder, unit,
                        offset + static_cast<int64_t>(out.size()));
    }
    const State::Piece& piece = next->second;
    const plan::PartitionSpec& partition = piece.record.partition;
    const int64_t begin = offset - partition.offset;
    if (begin >= partition.count) {
      return OutOfRange("{}: unit {} has no element {}", state_->folder, unit, offset);
    }
    const int64_t count = std::min(partition.count - begin, static_cast<int64_t>(out.size()));
    const std::span<float> part = out.first(static_cast<size_t>(count));
    if (static_cast<int>(section) > partition.moment_arrays()) {
      std::ranges::fill(part, 0.0F);
    } else {
      SHOAL_RETURN_IF_ERROR(cache.Copy(
          &piece, piece.record.bytes(),
          [&](std::span<std::byte> record) { return piece.shard->Read(piece.record, record); },
          (static_cast<int64_t>(section) * partition.count + begin) * 4,
          std::as_writable_bytes(part)));
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += count;
    ++next;
  }
  return absl::OkStatus();
}

absl::Status CheckShards(const std::string& folder, const Manifest& manifest) {
  for (const ShardEntry& entry : manifest.shards) {
    SHOAL_RETURN_IF_ERROR(ShardReader::Open(folder, entry, manifest.step).status());
  }
  return absl::OkStatus();
}

std::vector<absl::Status> VerifyCheckpoint(const std::string& folder) {
  std::vector<absl::Status> damages;
  uint64_t job_hash = 0;
  const auto manifest = ReadManifest(folder, &job_hash);
  if (!manifest.ok()) {
    return {manifest.status()};
  }
  if (const auto job = ReadJob(folder, job_hash); !job.ok()) {
    damages.push_back(job.status());
  }
  for (const ShardEntry& entry : manifest->shards) {
    const auto shard = ShardReader::Open(folder, entry, manifest->step);
    if (!shard.ok()) {
      damages.push_back(shard.status());
      continue;
    }
    for (const ShardRecord& record : (*shard)->records()) {
      if (absl::Status status = (*shard)->Verify(record); !status.ok()) {
        damages.push_back(status);
        break;  // one line per file
      }
    }
  }
  if (damages.empty()) {
    if (const auto checkpoint = Checkpoint::Open(folder); !checkpoint.ok()) {
      damages.push_back(checkpoint.status());
    }
  }
  return damages;
}

absl::StatusOr<std::string> HashOfState(const Checkpoint& checkpoint) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  SHOAL_CHECK(state != nullptr);
  XXH3_128bits_reset(state.get());
  std::vector<float> piece(1 << 20);
  for (const Section section : {Section::kMaster, Section::kFirstMoment, Section::kSecondMoment}) {
    for (const plan::UnitSpec& unit : plan::BuildUnits(checkpoint.manifest().spec)) {
      for (int64_t offset = 0; offset < unit.count; offset += std::ssize(piece)) {
        const int64_t count = std::min<int64_t>(std::ssize(piece), unit.count - offset);
        const std::span<float> part(piece.data(), static_cast<size_t>(count));
        SHOAL_RETURN_IF_ERROR(checkpoint.Read(section, unit.index, offset, part));
        XXH3_128bits_update(state.get(), part.data(), part.size_bytes());
      }
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

absl::Status ExportHuggingFace(const Checkpoint& checkpoint, const std::string& output,
                               const ExportOptions& options) {
  const Manifest& manifest = checkpoint.manifest();
  const auto read = [&](int unit, int64_t offset, std::span<float> out) {
    return checkpoint.Read(Section::kMaster, unit, offset, out);
  };
  if (!manifest.spec.adapters.empty() && !options.merge) {
    SHOAL_RETURN_IF_ERROR(
        formats::WritePeftAdapter(output, manifest.spec, read,
                                  {.dtype = options.dtype,
                                   .base_model = options.config_folder,
                                   .dropout = options.lora_dropout,
                                   .rank_stabilized = options.rslora,
                                   .tokenizer_folder = options.tokenizer_folder}));
  } else {
    SHOAL_RETURN_IF_ERROR(formats::WriteHfModel(output, plan::WithoutAdapters(manifest.spec),
                                                plan::MergedWeights(manifest.spec, read),
                                                {.dtype = options.dtype,
                                                 .tokenizer_folder = options.tokenizer_folder,
                                                 .config_folder = options.config_folder,
                                                 .special = manifest.special}));
  }
  return PutTemplate(output, options);
}

absl::Status ReplaceExport(const std::string& checkpoint, const std::string& output,
                           const plan::Job& job) {
  SHOAL_ASSIGN_OR_RETURN(const auto opened, Checkpoint::Open(checkpoint));
  const std::string fresh = output + ".new";
  std::error_code error;
  std::filesystem::remove_all(fresh, error);
  SHOAL_RETURN_IF_ERROR(ExportHuggingFace(
      *opened, fresh,
      {.dtype = job.checkpoint.export_type == plan::ExportType::kBf16 ? DType::kBF16 : DType::kF32,
       .tokenizer_folder = job.model,
       .config_folder = job.model,
       .rslora = job.lora.rslora,
       .lora_dropout = job.lora.dropout,
       .chat_template = job.data.chat_template}));
  std::filesystem::remove_all(output, error);
  std::filesystem::rename(fresh, output, error);
  return error ? Internal("{}: {}", output, error.message()) : absl::OkStatus();
}

}  // namespace shoal::server
