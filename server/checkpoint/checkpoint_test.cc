#include "server/checkpoint/checkpoint.h"

#include <xxhash.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/json/json.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/model/adapters.h"
#include "core/model/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace shoal::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const ValidationResult kValidation = {
    .step = 6, .loss = 1.25, .best_step = 4, .best_loss = 1.125, .since_best = 1};
const plan::ModelSpec kSpec = *plan::NamedShape("tiny");

std::string FreshDirectory() {
  return fmt::format("{}/checkpoint-{}", ::testing::TempDir(), SecureToken());
}

// Returns the value of an element, so that any range can be checked.
float Value(Section section, int unit, int64_t element) {
  return static_cast<float>(static_cast<int>(section) * 1000 + unit) +
         static_cast<float>(element % 997) * 0.001f;
}

std::vector<float> Range(Section section, int unit, int64_t offset, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = Value(section, unit, offset + i);
  }
  return values;
}

std::string WriteCheckpoint(const std::string& directory, int64_t step, int servers) {
  const auto partitions = plan::BuildPartitions(plan::BuildUnits(kSpec), 16 * kKiB);
  const plan::ShardMap map = plan::PlaceShards(partitions, servers, 1);
  auto writing = CheckpointDirectory::Take(directory);
  const auto folder = writing->Begin(step);
  EXPECT_TRUE(folder.ok());
  Manifest manifest{
      .step = step, .loss = 1.5, .validation = kValidation, .norms = {0.1, 5, 2}, .spec = kSpec};
  for (int server = 0; server < servers; ++server) {
    std::vector<plan::PartitionSpec> mine;
    for (const int id : plan::PartitionsOf(map, server)) {
      mine.push_back(partitions[static_cast<size_t>(id)]);
    }
    auto writer = ShardWriter::Create(*folder, server, step, mine);
    EXPECT_TRUE(writer.ok());
    for (const plan::PartitionSpec& p : mine) {
      EXPECT_TRUE((*writer)
                      ->Add(Range(Section::kMaster, p.unit, p.offset, p.count),
                            Range(Section::kFirstMoment, p.unit, p.offset, p.count),
                            Range(Section::kSecondMoment, p.unit, p.offset, p.count))
                      .ok());
    }
    auto entry = (*writer)->Finish();
    EXPECT_TRUE(entry.ok());
    manifest.shards.push_back(*entry);
  }
  return writing->Complete(manifest, "model: x\n").value();
}

// Releases that know of no frozen partition read all that has none.
TEST(Checkpoint, AShardIsOfTheSecondFormatOnlyWhereSomethingIsFrozen) {
  for (const bool frozen : {false, true}) {
    const std::string folder = FreshDirectory();
    fs::create_directories(folder);
    const plan::PartitionSpec partition = {.count = 64, .frozen = frozen};
    auto writer = ShardWriter::Create(folder, 0, 1, {partition});
    const std::vector<float> values(64);
    const std::span<const float> moments = std::span(values).first(frozen ? 0 : 64);
    ASSERT_OK((*writer)->Add(values, moments, moments));
    ASSERT_OK((*writer)->Finish().status());
    const std::string bytes = ReadFile(folder + "/server-0000.shard", 1 << 20).value();
    EXPECT_EQ(bytes[8], frozen ? 2 : 1);
    const auto parse = [&](std::string shard, char version) {
      shard[8] = version;
      return ParseShard(std::as_bytes(std::span(shard)), std::ssize(shard), "shard").status();
    };
    ASSERT_OK(parse(bytes, bytes[8]));
    EXPECT_EQ(parse(bytes, 1).ok(), !frozen) << "the first format has nothing frozen";
  }
}

TEST(Checkpoint, AShardSaysHowManyMomentsAnOptimizerKeeps) {
  const std::string folder = FreshDirectory();
  fs::create_directories(folder);
  const plan::PartitionSpec partition = {.count = 64, .moments = {.arrays = 1}};
  auto writer = ShardWriter::Create(folder, 0, 1, {partition});
  const std::vector<float> values(64, 1.0F);
  ASSERT_OK((*writer)->Add(values, values, {}));
  ASSERT_OK((*writer)->Finish().status());
  std::string bytes = ReadFile(folder + "/server-0000.shard", 1 << 20).value();
  const auto parse = [&bytes] {
    return ParseShard(std::as_bytes(std::span(bytes)), std::ssize(bytes), "shard");
  };
  EXPECT_EQ(bytes[8], 3);
  ASSERT_OK(parse().status());
  EXPECT_EQ(parse()->records[0].bytes(), 64 * 8);
  const auto refuses = [&](size_t at, char value) {
    const char before = std::exchange(bytes[at], value);
    const bool refused = !parse().ok();
    bytes[at] = before;
    return refused;
  };
  EXPECT_TRUE(refuses(8, 2)) << "the second format has two moments or none";
  constexpr size_t kLacked = 64 + 48;
  EXPECT_EQ(bytes[kLacked], 1);
  EXPECT_TRUE(refuses(kLacked, 3));
}

TEST(Checkpoint, AnyRangeReadsBackWhateverTheServers) {
  for (const int servers : {1, 3, 5}) {
    const auto checkpoint = Checkpoint::Open(WriteCheckpoint(FreshDirectory(), 7, servers));
    ASSERT_TRUE(checkpoint.ok()) << Describe(checkpoint.status());
    EXPECT_EQ((*checkpoint)->manifest().step, 7);
    EXPECT_EQ((*checkpoint)->manifest().spec, kSpec);
    EXPECT_EQ((*checkpoint)->manifest().validation, kValidation);
    EXPECT_EQ((*checkpoint)->manifest().norms.mean, 0.1);
    EXPECT_EQ((*checkpoint)->manifest().norms.steps, 5);
    EXPECT_EQ((*checkpoint)->manifest().norms.skipped_in_a_row, 2);
    EXPECT_EQ(*(*checkpoint)->JobYaml(), "model: x\n");
    Random random(1);
    const auto units = plan::BuildUnits(kSpec);
    for (int i = 0; i < 200; ++i) {
      const auto& unit = units[random.Below(units.size())];
      const int64_t offset = random.Between(0, unit.count - 1);
      const int64_t count = random.Between(0, unit.count - offset);
      const auto section = static_cast<Section>(random.Below(kSections));
      std::vector<float> out(static_cast<size_t>(count));
      ASSERT_TRUE((*checkpoint)->Read(section, unit.index, offset, out).ok());
      EXPECT_EQ(out, Range(section, unit.index, offset, count));
    }
    std::vector<float> beyond(2);
    EXPECT_FALSE((*checkpoint)->Read(Section::kMaster, 0, units[0].count - 1, beyond).ok());
    EXPECT_FALSE((*checkpoint)->Read(Section::kMaster, 99, 0, beyond).ok());
  }
}

TEST(Checkpoint, EveryDamagedFileIsNamed) {
  const std::string folder = WriteCheckpoint(FreshDirectory(), 3, 2);
  EXPECT_TRUE(VerifyCheckpoint(folder).empty());
  Random random(5);
  for (const char* name : {"server-0000.shard", "server-0001.shard", "job.yaml", "manifest.json"}) {
    const std::string path = folder + "/" + name;
    const std::string good = *ReadFile(path);
    for (int trial = 0; trial < 30; ++trial) {
      std::string bad = good;
      const auto place = static_cast<size_t>(random.Below(bad.size()));
      bad[place] = static_cast<char>(bad[place] ^ (1 << random.Below(8)));
      std::ofstream(path, std::ios::binary) << bad;
      const auto damages = VerifyCheckpoint(folder);
      // Padding between records is not covered by a hash and holds nothing.
      const bool in_padding =
          damages.empty() && good[place] == '\0' && std::string(name).ends_with(".shard");
      if (!in_padding) {
        ASSERT_EQ(damages.size(), 1u) << name << " with byte " << place << " changed";
        EXPECT_THAT(std::string(damages[0].message()), HasSubstr(path));
      }
    }
    std::ofstream(path, std::ios::binary) << good.substr(0, good.size() / 2);
    ASSERT_FALSE(VerifyCheckpoint(folder).empty());
    EXPECT_THAT(std::string(VerifyCheckpoint(folder)[0].message()), HasSubstr(path));
    std::ofstream(path, std::ios::binary) << good;
  }
  EXPECT_TRUE(VerifyCheckpoint(folder).empty());
}

TEST(Checkpoint, ARestoreFromDamagedDataIsRefused) {
  const std::string folder = WriteCheckpoint(FreshDirectory(), 3, 1);
  const std::string path = folder + "/server-0000.shard";
  std::string bytes = *ReadFile(path);
  bytes[bytes.size() - 100] ^= 0x40;
  std::ofstream(path, std::ios::binary) << bytes;
  const auto checkpoint = Checkpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok()) << "header and records are whole";
  bool refused = false;
  for (const plan::UnitSpec& unit : plan::BuildUnits(kSpec)) {
    std::vector<float> out(static_cast<size_t>(unit.count));
    const absl::Status status = (*checkpoint)->Read(Section::kSecondMoment, unit.index, 0, out);
    refused = refused || absl::IsDataLoss(status);
  }
  EXPECT_TRUE(refused);
}

TEST(Checkpoint, AnErrorOfReadOnceIsNotKept) {
  const std::string folder = WriteCheckpoint(FreshDirectory(), 3, 1);
  std::fstream shard(folder + "/server-0000.shard",
                     std::ios::binary | std::ios::in | std::ios::out);
  const auto flip = [&] {
    shard.seekg(-100, std::ios::end);
    const int byte = shard.peek();
    shard.seekp(-100, std::ios::end);
    shard.put(static_cast<char>(byte ^ 0x40)).flush();
  };
  const auto checkpoint = Checkpoint::Open(folder);
  ASSERT_OK(checkpoint.status());
  const auto read_all = [&] {
    for (const plan::UnitSpec& unit : plan::BuildUnits(kSpec)) {
      std::vector<float> out(static_cast<size_t>(unit.count));
      SHOAL_RETURN_IF_ERROR((*checkpoint)->ReadOnce(Section::kSecondMoment, unit.index, 0, out));
    }
    return absl::OkStatus();
  };
  flip();
  EXPECT_TRUE(absl::IsDataLoss(read_all()));
  flip();
  ASSERT_OK(read_all());
}

// Reads all of a checkpoint; the first error.
absl::Status ReadAll(const Checkpoint& checkpoint) {
  for (const plan::UnitSpec& unit : plan::BuildUnits(kSpec)) {
    std::vector<float> out(static_cast<size_t>(unit.count));
    for (const Section section :
         {Section::kMaster, Section::kFirstMoment, Section::kSecondMoment}) {
      SHOAL_RETURN_IF_ERROR(checkpoint.Read(section, unit.index, 0, out));
    }
  }
  return absl::OkStatus();
}

TEST(Checkpoint, AShardThatIsCutShortWhileOpenIsNamed) {
  const std::string folder = WriteCheckpoint(FreshDirectory(), 3, 1);
  const std::string path = folder + "/server-0000.shard";
  for (const bool verified : {true, false}) {
    const std::string bytes = *ReadFile(path);
    const auto checkpoint = Checkpoint::Open(folder);
    ASSERT_OK(checkpoint.status());
    if (verified) {
      ASSERT_OK(ReadAll(**checkpoint));
    }
    fs::resize_file(path, bytes.size() / 2);
    EXPECT_REFUSED(ReadAll(**checkpoint), path + " was cut short while it was open");
    std::ofstream(path, std::ios::binary) << bytes;
  }
}

TEST(Checkpoint, DataThatChangesAfterItWasVerifiedIsRefused) {
  const std::string folder = WriteCheckpoint(FreshDirectory(), 3, 1);
  const std::string path = folder + "/server-0000.shard";
  const auto checkpoint = Checkpoint::Open(folder);
  ASSERT_OK(checkpoint.status());
  ASSERT_OK(ReadAll(**checkpoint));
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto half = static_cast<std::streamoff>(fs::file_size(path) / 2);
  file.seekg(half);
  const int byte = file.get();
  file.seekp(half);
  file.put(static_cast<char>(byte ^ 1)).flush();
  EXPECT_REFUSED(ReadAll(**checkpoint), path + ": damaged: the data of partition");
}

TEST(Folders, OnlyCompleteOnesCountAndPruningKeepsTheNewest) {
  const std::string directory = FreshDirectory();
  EXPECT_TRUE(ListCheckpoints(directory)->empty());
  EXPECT_FALSE(NewestCheckpoint(directory)->has_value());
  for (const int64_t step : {10, 20, 30, 40}) {
    WriteCheckpoint(directory, step, 1);
  }
  fs::remove(CheckpointPath(directory, 40) + "/manifest.json");
  EXPECT_EQ(ListCheckpoints(directory)->size(), 3u);
  EXPECT_EQ((*NewestCheckpoint(directory))->step, 30);
  auto writing = CheckpointDirectory::Take(directory);
  ASSERT_OK(writing->Begin(50).status());
  ASSERT_OK(writing->Prune(2));
  const auto left = *ListCheckpoints(directory);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].step, 20);
  EXPECT_FALSE(fs::exists(CheckpointPath(directory, 40))) << "nobody completes it";
  EXPECT_EQ(UnfinishedCheckpoints(directory)->size(), 1u) << "the one under way";
  EXPECT_FALSE(writing->Begin(30).ok()) << "a complete one is not overwritten";
  ASSERT_OK(writing->Prune(0));
  EXPECT_EQ((*NewestCheckpoint(directory))->step, 30);
}

TEST(HashOfState, DependsOnTheStateAlone) {
  std::set<std::string> hashes;
  for (const int servers : {1, 2, 5}) {
    hashes.insert(*HashOfState(**Checkpoint::Open(WriteCheckpoint(FreshDirectory(), 3, servers))));
  }
  ASSERT_EQ(hashes.size(), 1u);
  EXPECT_EQ(hashes.begin()->size(), 32u);
}

TEST(ParseManifest, RefusesDeepNesting) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  uint64_t job_hash = 0;
  const absl::Status status =
      ParseManifest(fmt::format(R"({{"format":1,"hash":"0000000000000000","z":{}}})", deep),
                    "manifest.json", &job_hash)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Message(status), "manifest.json: nested more than 64 deep in 'z'");
}

// What is said of a manifest whose hash is right.
std::string RefusalOf(Json manifest) {
  manifest.erase("hash");
  const std::string text = manifest.dump();
  manifest["hash"] = fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
  uint64_t job_hash = 0;
  return std::string(
      Message(ParseManifest(manifest.dump(), "a/manifest.json", &job_hash).status()));
}

TEST(ParseManifest, NamesWhatIsWrongWithAdapters) {
  Manifest manifest = {.spec = plan::WithAdapters(kSpec, {"q_proj"}, 4, 2).value()};
  manifest.spec.quantize = plan::Quantize::kNf4;
  const Json right = Json::parse(ManifestToJson(manifest, 1));
  EXPECT_EQ(RefusalOf(right), "");
  for (const Json& other : {Json("int4"), Json("NF4"), Json(""), Json(4), Json(), Json(true),
                            Json({"nf4"}), Json({{"nf4", true}})}) {
    Json wrong = right;
    wrong["quantize"] = other;
    EXPECT_EQ(RefusalOf(wrong),
              "a/manifest.json: quantize: " + other.dump() + " is not supported; \"nf4\" is");
  }
  Json alone = right;
  alone.erase("adapters");
  EXPECT_EQ(RefusalOf(alone), "a/manifest.json: quantize: there are no adapters");
  Json unknown = right;
  unknown["adapters"]["model.layers.0.self_attn.q_prj"] = {{"rank", 4}, {"scale", 2.0}};
  EXPECT_THAT(RefusalOf(unknown), HasSubstr("a/manifest.json: adapters: "
                                            "'model.layers.0.self_attn.q_prj': the model has no "
                                            "such module"));
  Json large = right;
  large["adapters"]["model.layers.0.self_attn.q_proj"]["rank"] = 5000;
  EXPECT_THAT(RefusalOf(large), HasSubstr("a/manifest.json: adapters: "));
}

TEST(ExportHuggingFace, GivesBackTheMasterWeights) {
  const auto checkpoint = Checkpoint::Open(WriteCheckpoint(FreshDirectory(), 1, 2));
  ASSERT_TRUE(checkpoint.ok());
  const std::string output = FreshDirectory();
  ASSERT_TRUE(ExportHuggingFace(**checkpoint, output, {}).ok());
  const auto model = formats::HfModel::Open(output);
  ASSERT_TRUE(model.ok()) << Describe(model.status());
  for (const plan::UnitSpec& unit : plan::BuildUnits(kSpec)) {
    for (const plan::TensorSpec& tensor : unit.tensors) {
      std::vector<float> out(static_cast<size_t>(tensor.count()));
      ASSERT_TRUE((*model)->ReadUnit(unit.index, tensor.offset, out).ok());
      EXPECT_EQ(out, Range(Section::kMaster, unit.index, tensor.offset, tensor.count()));
    }
  }
}

// One line says so, since whoever takes the model may count on its own template.
TEST(ExportHuggingFace, SaysWhereItReplacesATemplate) {
  const auto checkpoint = Checkpoint::Open(WriteCheckpoint(FreshDirectory(), 1, 2));
  ASSERT_TRUE(checkpoint.ok());
  const std::string model = FreshDirectory();
  ASSERT_TRUE(CreateDirectories(model).ok());
  ASSERT_TRUE(WriteFileAtomically(model + "/chat_template.jinja", "{{ messages }}").ok());
  const auto warning = [&](const std::string& name) {
    InitLogging({});
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(ExportHuggingFace(**checkpoint, FreshDirectory(),
                                  {.tokenizer_folder = model, .chat_template = name})
                    .ok());
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warning("chatml"), ::testing::HasSubstr("its chat template is chatml, as the job "
                                                      "says, in place of that of " +
                                                      model));
  EXPECT_THAT(warning(model + "/gone.jinja"),
              ::testing::HasSubstr("its chat template is not the job's: "));
  EXPECT_THAT(warning(model + "/chat_template.jinja"),
              ::testing::Not(::testing::HasSubstr("chat template")))
      << "it is that one";
  EXPECT_THAT(warning("auto"), ::testing::Not(::testing::HasSubstr("chat template")));
}

}  // namespace
}  // namespace shoal::server
