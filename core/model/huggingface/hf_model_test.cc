#include "core/model/huggingface/hf_model.h"

#include <cmath>

#include "core/base/bf16.h"
#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/model/family.h"
#include "core/model/huggingface/safetensors.h"
#include "core/model/huggingface/testing/small_configs.h"
#include "nlohmann/json.hpp"

namespace shoal::formats {
namespace {

using nlohmann::json;

plan::ModelSpec Tiny(bool tied) {
  plan::ModelSpec spec = *plan::NamedShape("tiny");
  spec.hidden = 36;  // head_dim and hidden that leave padding between tensors
  spec.kinds[0].attention.head_dim = 6;
  spec.kinds[0].mlp.intermediate = 50;
  spec.tied_embeddings = tied;
  return spec;
}

std::vector<float> ReadWhole(const plan::UnitReader& read, const plan::UnitSpec& unit) {
  std::vector<float> values(static_cast<size_t>(unit.count), 99.0F);
  const absl::Status status = read(unit.index, 0, values);
  EXPECT_TRUE(status.ok()) << Describe(status);
  return values;
}

plan::UnitReader ReaderOf(const HfModel& model) {
  return [&model](int unit, int64_t offset, std::span<float> out) {
    return model.ReadUnit(unit, offset, out);
  };
}

TEST(HfModel, ReadsBackWhatWasWritten) {
  const TemporaryFolder folder;
  for (const std::string shape : {"llama", "tied", "biases", "qwen2", "olmo2", "phi3", "gemma2"}) {
    plan::ModelSpec spec = Tiny(shape == "tied");
    plan::Attention& attention = spec.kinds[0].attention;
    plan::Mlp& mlp = spec.kinds[0].mlp;
    attention.qkv_bias = attention.output_bias = mlp.bias = shape == "biases";
    if (plan::FindFamily(shape) != nullptr) {
      spec.family = shape;
      attention.qkv_bias = shape == "qwen2";
    }
    if (shape == "olmo2") {
      spec.kinds[0].norms = plan::Norms::kPost;
      attention.qk_norm = plan::QkNorm::kWhole;
    }
    if (shape == "gemma2") {
      spec.kinds[0].norms = plan::Norms::kSandwich;
      spec.norm_offset = 1;
      spec.scaled_embeddings = true;
      mlp.gate = plan::Gate::kGeluTanh;
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t max_file_bytes : {int64_t{1} << 40, int64_t{20000}}) {
        const plan::UnitReader initial = InitialWeights(spec, 5);
        ASSERT_OK(WriteHfModel(folder.path(), spec, initial,
                               {.dtype = dtype, .max_file_bytes = max_file_bytes}));
        const auto model = HfModel::Open(folder.path());
        ASSERT_OK(model.status());
        EXPECT_EQ((*model)->spec(), spec);
        for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
          std::vector<float> expected = ReadWhole(initial, unit);
          if (dtype == DType::kBF16) {
            for (float& value : expected) {
              value = static_cast<float>(BFloat16(value));
            }
          }
          EXPECT_EQ(ReadWhole(ReaderOf(**model), unit), expected);
        }
      }
    }
  }
}

// q, k and v, and gate and up, one after the other in one tensor each.
TEST(HfModel, JoinsWhatTheFamilysFilesHoldTogether) {
  const TemporaryFolder folder;
  plan::ModelSpec spec = Tiny(false);
  spec.family = "phi3";
  ASSERT_OK(InitHfModel(folder.path(), spec, 3, {}));
  const auto file = SafetensorsFile::Open(folder / "model.safetensors");
  ASSERT_OK(file.status());
  const plan::UnitSpec block = plan::BuildUnits(spec)[1];
  const std::vector<float> values = ReadWhole(InitialWeights(spec, 3), block);
  const auto expect = [&](const std::string& name, const std::vector<plan::Role>& roles) {
    ASSERT_TRUE((*file)->tensors().contains(name)) << name;
    const SafetensorsEntry& entry = (*file)->tensors().at(name);
    std::vector<float> expected;
    for (const plan::Role role : roles) {
      const plan::TensorSpec& part = *block.Find(role);
      EXPECT_FALSE((*file)->tensors().contains(part.name)) << part.name;
      expected.insert(expected.end(), values.begin() + part.offset,
                      values.begin() + part.offset + part.count());
    }
    std::vector<float> stored(expected.size());
    EXPECT_EQ(entry.shape, (std::vector<int64_t>{std::ssize(stored) / spec.hidden, spec.hidden}));
    ASSERT_OK((*file)->Read(entry, 0, std::as_writable_bytes(std::span(stored))));
    EXPECT_EQ(stored, expected) << name;
  };
  expect("model.layers.0.self_attn.qkv_proj.weight",
         {plan::Role::kQ, plan::Role::kK, plan::Role::kV});
  expect("model.layers.0.mlp.gate_up_proj.weight", {plan::Role::kGate, plan::Role::kUp});
}

TEST(HfModel, ReadsAnyRange) {
  const TemporaryFolder folder;
  const plan::ModelSpec spec = Tiny(false);
  ASSERT_OK(InitHfModel(folder.path(), spec, 3, {.dtype = DType::kBF16}));
  const auto model = HfModel::Open(folder.path());
  ASSERT_OK(model.status());
  const auto units = plan::BuildUnits(spec);
  Random random(1);
  for (int i = 0; i < 200; ++i) {
    const plan::UnitSpec& unit = units[random.Below(units.size())];
    const std::vector<float> whole = ReadWhole(ReaderOf(**model), unit);
    const int64_t offset = random.Between(0, unit.count);
    std::vector<float> part(static_cast<size_t>(random.Between(0, unit.count - offset)), 99.0F);
    ASSERT_OK((*model)->ReadUnit(unit.index, offset, part));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + offset));
  }
  std::vector<float> beyond(17);
  EXPECT_TRUE(absl::IsOutOfRange((*model)->ReadUnit(0, units[0].count - 16, beyond)));
  EXPECT_TRUE(absl::IsOutOfRange((*model)->ReadUnit(99, 0, beyond)));
  EXPECT_TRUE(absl::IsOutOfRange((*model)->ReadUnit(0, -1, beyond)));
}

TEST(HfModel, WritingOverAnotherFormLeavesJustTheNewOne) {
  const TemporaryFolder folder;
  const plan::ModelSpec spec = Tiny(true);
  ASSERT_OK(InitHfModel(folder.path(), spec, 1, {}));
  ASSERT_OK(InitHfModel(folder.path(), spec, 2, {.max_file_bytes = 1}));
  auto model = HfModel::Open(folder.path());
  ASSERT_OK(model.status());
  EXPECT_EQ(ReadWhole(ReaderOf(**model), plan::BuildUnits(spec)[1]),
            ReadWhole(InitialWeights(spec, 2), plan::BuildUnits(spec)[1]));
  ASSERT_OK(InitHfModel(folder.path(), spec, 3, {}));
  EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors.index.json"));
}

TEST(InitialWeights, HaveTheStatedDistribution) {
  plan::ModelSpec spec = *plan::NamedShape("6m");
  const plan::UnitReader read = InitialWeights(spec, 1);
  const plan::UnitSpec block = plan::BuildUnits(spec)[1];
  const std::vector<float> values = ReadWhole(read, block);
  for (const plan::TensorSpec& tensor : block.tensors) {
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const double value = values[static_cast<size_t>(tensor.offset + i)];
      sum += value;
      squares += value * value;
    }
    const auto count = static_cast<double>(tensor.count());
    if (tensor.rank() == 1) {
      EXPECT_EQ(sum, count) << tensor.name;
      continue;
    }
    const bool residual = tensor.role == plan::Role::kOutput || tensor.role == plan::Role::kDown;
    const double deviation = residual ? 0.02 / std::sqrt(12.0) : 0.02;
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 0.02 * deviation) << tensor.name;
    EXPECT_NEAR(sum / count, 0, 5 * deviation / std::sqrt(count)) << tensor.name;
  }
  EXPECT_NE(values, ReadWhole(InitialWeights(spec, 2), block));
}

std::string DataOf(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::string data(static_cast<size_t>(entry.bytes), '?');
  EXPECT_THAT(file.Read(entry, 0, std::as_writable_bytes(std::span(data))), IsOk());
  return data;
}

TEST(HfModel, OpensThePretrainedModel) {
  if (TestData().empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  const auto model = HfModel::Open(TestData() + "/stories260k");
  ASSERT_OK(model.status());
  EXPECT_EQ(plan::ParameterCount((*model)->spec()), 260032);
  EXPECT_TRUE((*model)->spec().tied_embeddings);
  const auto special = ReadSpecialTokens(TestData() + "/stories260k");
  ASSERT_OK(special.status());
  EXPECT_EQ(special->bos, 1);
  EXPECT_EQ(special->eos, 2);

  // After writing again, the weights have the same bits and the tokenizer is copied.
  const TemporaryFolder folder;
  ASSERT_OK(WriteHfModel(folder.path(), (*model)->spec(), ReaderOf(**model),
                         {.tokenizer_folder = TestData() + "/stories260k", .special = *special}));
  EXPECT_TRUE(std::filesystem::exists(folder / "tokenizer.json"));
  const auto original = SafetensorsFile::Open(TestData() + "/stories260k/model.safetensors");
  const auto copy = SafetensorsFile::Open(folder / "model.safetensors");
  ASSERT_OK(original.status());
  ASSERT_OK(copy.status());
  ASSERT_EQ((*original)->tensors().size(), (*copy)->tensors().size());
  for (const auto& [name, entry] : (*original)->tensors()) {
    EXPECT_EQ(DataOf(**original, entry), DataOf(**copy, (*copy)->tensors().at(name))) << name;
  }
}

TEST(CopyTokenizerFiles, TakesAllTemplates) {
  const TemporaryFolder from;
  const TemporaryFolder to;
  ASSERT_OK(CopyTokenizerFiles(from.path(), to.path()));
  EXPECT_TRUE(std::filesystem::is_empty(to.path())) << "there is none";
  ASSERT_OK(CreateDirectories(from / "additional_chat_templates"));
  for (const char* name : {"chat_template.jinja", "additional_chat_templates/tool_use.jinja",
                           "additional_chat_templates/notes.txt"}) {
    ASSERT_OK(WriteFileAtomically(from / name, name));
  }
  ASSERT_OK(CopyTokenizerFiles(from.path(), to.path()));
  EXPECT_EQ(*ReadFile(to / "chat_template.jinja"), "chat_template.jinja");
  EXPECT_EQ(*ReadFile(to / "additional_chat_templates/tool_use.jinja"),
            "additional_chat_templates/tool_use.jinja");
  EXPECT_FALSE(std::filesystem::exists(to / "additional_chat_templates/notes.txt"));
  const TemporaryFolder broken;
  ASSERT_OK(WriteFileAtomically(broken / "additional_chat_templates", "no folder"));
  EXPECT_REFUSED(CopyTokenizerFiles(broken.path(), to.path()),
                 "cannot read " + broken / "additional_chat_templates");
}

TEST(WriteHfModel, CopiesTheConfigThatWasRead) {
  const TemporaryFolder from;
  const TemporaryFolder to;
  const plan::ModelSpec spec = Tiny(true);
  std::string config = ModelSpecToJson(spec, DType::kF32, {.bos = 1});
  const std::string own = ModelSpecToJson(spec, DType::kBF16, {});
  config.insert(1, "\n  \"a_key\": [\"dtype\", 1.50],  \"dtype\" : \"float16\",");
  const auto written = [&] {
    EXPECT_THAT(
        InitHfModel(to.path(), spec, 1, {.dtype = DType::kBF16, .config_folder = from.path()}),
        IsOk());
    return *ReadFile(to / "config.json");
  };
  EXPECT_EQ(written(), own) << "there is none";
  ASSERT_OK(WriteFileAtomically(from / "config.json", config));
  std::string expected = config;
  expected.replace(expected.find("float16"), 7, "bfloat16");
  expected.replace(expected.find("float32"), 7, "bfloat16");
  EXPECT_EQ(written(), expected);
  ASSERT_OK(
      WriteFileAtomically(from / "config.json", ModelSpecToJson(Tiny(false), DType::kF32, {})));
  EXPECT_EQ(written(), own) << "it is of another model";
}

// A folder whose weights a test may change.
class Damage : public testing::Test {
 protected:
  struct Tensor {
    SafetensorsTensor form;
    std::string data;
  };

  void Load(const plan::ModelSpec& spec) {
    ASSERT_OK(InitHfModel(folder_.path(), spec, 1, {}));
    const auto file = SafetensorsFile::Open(folder_ / "model.safetensors");
    ASSERT_OK(file.status());
    for (const auto& [name, entry] : (*file)->tensors()) {
      tensors_[name] = {{name, entry.dtype, entry.shape}, DataOf(**file, entry)};
    }
  }
  absl::Status Reopen() {
    std::vector<SafetensorsTensor> forms;
    for (auto& [name, tensor] : tensors_) {
      tensor.form.name = name;
      forms.push_back(tensor.form);
    }
    SHOAL_ASSIGN_OR_RETURN(auto writer,
                           SafetensorsWriter::Create(folder_ / "model.safetensors", forms, {}));
    for (const auto& [name, tensor] : tensors_) {
      SHOAL_RETURN_IF_ERROR(writer->Append(std::as_bytes(std::span(tensor.data))));
    }
    SHOAL_RETURN_IF_ERROR(writer->Finish());
    return HfModel::Open(folder_.path()).status();
  }

  TemporaryFolder folder_;
  std::map<std::string, Tensor> tensors_;
};

TEST_F(Damage, MissingTensor) {
  Load(Tiny(false));
  ASSERT_OK(Reopen());
  tensors_.erase("model.layers.1.self_attn.k_proj.weight");
  EXPECT_REFUSED(Reopen(), "'model.layers.1.self_attn.k_proj.weight' is missing");
}

TEST_F(Damage, MissingHeadOfAnUntiedModel) {
  Load(Tiny(false));
  tensors_.erase("lm_head.weight");
  EXPECT_REFUSED(Reopen(), "tie_word_embeddings: true");
}

TEST_F(Damage, WrongShape) {
  Load(Tiny(false));
  std::swap(tensors_["lm_head.weight"].form.shape[0], tensors_["lm_head.weight"].form.shape[1]);
  EXPECT_REFUSED(Reopen(), "'lm_head.weight' has shape [36, 512], config.json asks for [512, 36]");
}

TEST_F(Damage, UnknownTensor) {
  Load(Tiny(false));
  tensors_["model.layers.0.rotary_emb.inv_freq"] = {{"", DType::kF32, {1}}, "abcd"};
  ASSERT_OK(Reopen());
  tensors_["model.layers.0.self_attn.q_norm.weight"] = {{"", DType::kF32, {1}}, "abcd"};
  EXPECT_REFUSED(Reopen(),
                 "'model.layers.0.self_attn.q_norm.weight' is not part of a LlamaForCausalLM");
}

TEST_F(Damage, TiedModelThatStoresItsHead) {
  Load(Tiny(true));
  tensors_["lm_head.weight"] = tensors_["model.embed_tokens.weight"];
  ASSERT_OK(Reopen());
  tensors_["lm_head.weight"].data[10] ^= 1;
  EXPECT_REFUSED(Reopen(), "set tie_word_embeddings to false");
}

TEST_F(Damage, TextOfACompositeModel) {
  json text = Llama();
  text["architectures"] = {"Gemma3ForCausalLM"};
  const plan::ModelSpec spec = *Parse(text);
  Load(spec);
  text.erase("architectures");
  const json composite = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                          {"text_config", text},
                          {"vision_config", {{"hidden_size", 8}}}};
  ASSERT_OK(WriteFileAtomically(folder_ / "config.json", composite.dump(2)));
  const std::map<std::string, Tensor> plain = tensors_;
  for (const std::string form : {"language_model.model.", "model.language_model."}) {
    tensors_ = {{"vision_tower.patches.weight", {{"", DType::kF32, {1}}, "abcd"}}};
    for (const auto& [name, tensor] : plain) {
      tensors_[form + name.substr(std::string("model.").size())] = tensor;
    }
    ASSERT_OK(Reopen());
    const auto model = HfModel::Open(folder_.path());
    EXPECT_EQ((*model)->spec(), spec);
    for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
      EXPECT_EQ(ReadWhole(ReaderOf(**model), unit), ReadWhole(InitialWeights(spec, 1), unit));
    }
    const TemporaryFolder exported;
    ASSERT_OK(
        WriteHfModel(exported.path(), spec, ReaderOf(**model), {.config_folder = folder_.path()}));
    EXPECT_EQ(HfModel::Open(exported.path()).value()->spec(), spec);
    EXPECT_EQ(json::parse(*ReadFile(exported / "config.json"))["architectures"][0],
              "Gemma3ForCausalLM");
    tensors_.erase(form + "norm.weight");
    EXPECT_REFUSED(Reopen(), "tensor 'model.norm.weight' is missing");
  }
}

TEST(HfModel, NamesAFileThatIsCutShortWhileOpen) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TemporaryFolder folder;
    ASSERT_OK(InitHfModel(folder.path(), Tiny(true), 1, {.dtype = dtype}));
    const std::string path = folder / "model.safetensors";
    const auto model = HfModel::Open(folder.path());
    ASSERT_OK(model.status());
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    absl::Status status;
    for (const plan::UnitSpec& unit : plan::BuildUnits((*model)->spec())) {
      std::vector<float> out(static_cast<size_t>(unit.count));
      status.Update((*model)->ReadUnit(unit.index, 0, out));
    }
    EXPECT_REFUSED(status, path + " was cut short while it was open");
  }
}

TEST(HfModel, RefusesFoldersThatAreNotModels) {
  const TemporaryFolder folder;
  EXPECT_REFUSED(HfModel::Open(folder / "absent").status(), "absent is no folder");
  EXPECT_REFUSED(HfModel::Open(folder.path()).status(), folder.path() + " has no config.json");
  ASSERT_OK(
      WriteFileAtomically(folder / "config.json", ModelSpecToJson(Tiny(true), DType::kF32, {})));
  EXPECT_REFUSED(HfModel::Open(folder.path()).status(), "neither model.safetensors nor");
  const auto index = [&](const std::string& text) {
    EXPECT_THAT(WriteFileAtomically(folder / "model.safetensors.index.json", text), IsOk());
    return HfModel::Open(folder.path()).status();
  };
  EXPECT_REFUSED(index("{}"), "weight_map is missing");
  EXPECT_REFUSED(index(R"({"weight_map": {"a": 1}})"), "'a'");
  EXPECT_REFUSED(index(R"({"weight_map": {"a": "../x.safetensors"}})"), "not the name of a file");
  EXPECT_REFUSED(index(R"({"weight_map": {"a": ".."}})"), "not the name of a file");
  EXPECT_REFUSED(index(R"({"weight_map": {"a": "x.safetensors"}})"), folder / "x.safetensors");
}

TEST(HfModel, RefusesShardsThatDisagreeWithTheIndex) {
  const TemporaryFolder folder;
  ASSERT_OK(InitHfModel(folder.path(), Tiny(true), 1, {.max_file_bytes = 20000}));
  const std::string path = folder / "model.safetensors.index.json";
  json index = json::parse(*ReadFile(path));
  index["weight_map"]["model.norm.weight"] = "model-00001-of-00008.safetensors";
  ASSERT_OK(WriteFileAtomically(path, index.dump()));
  EXPECT_FALSE(HfModel::Open(folder.path()).ok());
}

TEST(WriteHfModel, RefusesWhatItCannotDescribe) {
  const TemporaryFolder folder;
  plan::ModelSpec spec = Tiny(true);
  EXPECT_REFUSED(InitHfModel(folder.path(), spec, 1, {.dtype = DType::kF16}), "F16");
  spec.kinds[0].attention.output_bias = true;
  EXPECT_REFUSED(InitHfModel(folder.path(), spec, 1, {}), "cannot describe");
}

}  // namespace
}  // namespace shoal::formats
