#include "cli/testing/command_line.h"
#include "tests/mistakes/mistake.h"

namespace shoal::testing {
namespace {

// A file of data that `shoal data inspect` refuses.
Mistake InData(const std::string& name, const std::string& text, std::vector<std::string> says) {
  return {.name = name,
          .files = {{"data.jsonl", text}},
          .command = "data inspect {at}/data.jsonl --model {shared}/model",
          .says = std::move(says)};
}

Mistake OfInspect(const std::string& name, const std::string& more, std::vector<std::string> says) {
  return {.name = name,
          .command = "data inspect {shared}/train.jsonl --model {shared}/model " + more,
          .says = std::move(says)};
}

std::vector<Mistake> Files() {
  return {
      InData("EmptyData", "", {"{at}/data.jsonl: no sample to train on: the file is empty"}),
      InData("BlankData", "\n\n  \n", {"{at}/data.jsonl: no sample", "all its lines are blank"}),
      InData("PlainText", "Once upon a time\n",
             {"{at}/data.jsonl:1: not valid JSON", "is this plain text? JSONL has one object"}),
      InData("Csv", "prompt,completion\na,b\n", {"{at}/data.jsonl:1: not valid JSON", "JSONL"}),
      InData("ListWithoutAComma", "[{\"prompt\": \"a\", \"completion\": \"b\"}\n{}]",
             {"{at}/data.jsonl:2: the list of samples: a comma is missing"}),
      InData("ListCutShort", R"([{"prompt": "a", "completion": "b"},)",
             {"{at}/data.jsonl:1: the list of samples: it has no end", "cut short"}),
      InData("DamagedGzip", "\x1f\x8b\x08 and so on\n", {"{at}/data.jsonl: gzip: "}),
      InData("Parquet", "PAR1\x15\x04\x15\n",
             {"{at}/data.jsonl:1: not valid JSON", "the file is Parquet; write it as JSONL"}),
      InData("BrokenThirdLine",
             "{\"prompt\": \"a\", \"completion\": \"b\"}\n\n{\"prompt\": \"a\",\n",
             {"{at}/data.jsonl:3: not valid JSON at byte"}),
      InData("IllFormedUtf8", "{\"prompt\": \"a\xff\", \"completion\": \"b\"}\n",
             {"{at}/data.jsonl:1: not valid JSON at byte 14", "ill-formed UTF-8"}),
      {.name = "FolderForData",
       .command = "data inspect {at} --model {shared}/model",
       .says = {"{at}: no file in this folder ends with .jsonl or .json"}},
      {.name = "PatternOfNoData",
       .command = "data inspect {at}/*.jsonl --model {shared}/model",
       .says = {"{at}/*.jsonl: no file has such a name"}},
      {.name = "BomCrLfAndEmojiAreNoMistake",
       .files = {{"data.jsonl",
                  "\xEF\xBB\xBF{\"prompt\": \"\xF0\x9F\x90\x9F\", \"completion\": \"b\"}\r\n"}},
       .command = "data inspect {at}/data.jsonl --model {shared}/model",
       .code = 0,
       .kind = Mistake::Kind::kNoMistake},
  };
}

std::vector<Mistake> Samples() {
  return {
      InData("AlpacaHistoryOfOne", R"({"instruction": "a", "output": "b", "history": [["x"]]})",
             {"{at}/data.jsonl:1: history[0] is no list of what the user and the assistant said"}),
      InData("ShareGptTool", R"({"conversations": [{"from": "tool", "value": "x"}]})",
             {"{at}/data.jsonl:1: conversations[0]: a turn is from 'tool'", "human (user)"}),
      InData("TextForPretraining", R"({"text": "Once upon a time"})",
             {"{at}/data.jsonl:1: this looks like a document", "train.objective: pretrain"}),
      InData("OtherFieldNames", R"({"question": "a", "answer": "b"})",
             {"{at}/data.jsonl:1: none of 'messages', 'prompt' or 'input_ids'",
              "'answer', 'question'; name the file's fields with data.fields"}),
      InData("NoCompletion", R"({"prompt": "a"})", {"{at}/data.jsonl:1: completion is missing"}),
      InData("NumberForAPrompt", R"({"prompt": 3, "completion": "b"})",
             {"{at}/data.jsonl:1: prompt is 3, expected a string"}),
      InData("NoMessages", R"({"messages": []})", {"{at}/data.jsonl:1: there are no messages"}),
      InData("TextForMessages", R"({"messages": "x"})",
             {"{at}/data.jsonl:1: messages is \"x\", expected an array"}),
      InData("UnknownRole", R"({"messages": [{"role": "pirate", "content": "x"}]})",
             {"{at}/data.jsonl:1: message 0: unknown role 'pirate'",
              "system, user, assistant and tool"}),
      InData("NoRole", R"({"messages": [{"content": "x"}]})",
             {"{at}/data.jsonl:1: message 0: role is missing"}),
      InData("NothingToLearn", R"({"messages": [{"role": "user", "content": "x"}]})",
             {"{at}/data.jsonl: no sample to train on", "first {at}/data.jsonl:1",
              "what is learnt is a completion"}),
      InData("IdAboveTheVocabulary", R"({"input_ids": [1, 999999], "labels": [1, 2]})",
             {"{at}/data.jsonl:1: input_ids[1] is 999999", "(0 to 303)"}),
      InData("LabelsOfAnotherLength", R"({"input_ids": [1, 2], "labels": [1]})",
             {"{at}/data.jsonl:1: input_ids has 2 entries and labels has 1", "equally many"}),
      InData("NegativeWeight", R"({"prompt": "a", "completion": "b", "weight": -0.5})",
             {"{at}/data.jsonl:1: weight is -0.5, not 0 or a number from 1e-06 to 1000000"}),
      InData("TextForAWeight", R"({"prompt": "a", "completion": "b", "weight": "heavy"})",
             {"{at}/data.jsonl:1: weight is \"heavy\", not 0 or a number from"}),
      InData("WeightOfAMessageAboveAllBounds",
             R"({"messages": [{"role": "assistant", "content": "x", "weight": 1e9}]})",
             {"{at}/data.jsonl:1: message 0: weight is 1000000000.0, not 0 or a number from"}),
      InData("BadWeightOfAToken", R"({"input_ids": [1, 2], "labels": [1, 2], "weights": [1, -1]})",
             {"{at}/data.jsonl:1: weights[1] is -1, not 0 or a number from"}),
      InData("WeightsOfAnotherLength", R"({"input_ids": [1], "labels": [1], "weights": []})",
             {"{at}/data.jsonl:1: weights has 0 entries and labels has 1", "equally many"}),
      InData("WeightsTooSmallTogether",
             R"({"messages": [{"role": "assistant", "content": "x", "weight": 1e-5}],)"
             R"( "weight": 1e-5})",
             {"{at}/data.jsonl:1: token ", "in all, not from 1e-06 to 1000000"}),
      InData("AllWeightsZero", R"({"prompt": "a", "completion": "b", "weight": 0})",
             {"{at}/data.jsonl: no sample to train on", "first {at}/data.jsonl:1"}),
      OfInspect("SampleTooLong", "--max-sequence-tokens 10",
                {"{shared}/train.jsonl:1: the sample has", "max_sequence_tokens 10; raise that"}),
      OfInspect("SampleBeyondTheData", "--sample 50", {"--sample 50", "samples 0 to 49"}),
      OfInspect("FieldWithoutAName", "--field prompt",
                {"--field prompt: expected OURS=THEIRS, for example prompt=question"}),
      OfInspect("UnknownField", "--field pearl=x", {"unknown name 'pearl'", "known are messages"}),
      OfInspect("UnknownTemplateOption", "--template jinja",
                {"--template: is 'jinja', expected auto, plain, chatml, llama3 or the path of a"}),
  };
}

// Data that a job names.
std::vector<Mistake> OfJobs() {
  const auto train = [](const std::string& name, const std::string& more,
                        std::vector<std::string> says) {
    return Mistake{.name = name,
                   .files = {{"job.yaml", Job()}},
                   .command = "train {at}/job.yaml " + more,
                   .says = std::move(says)};
  };
  const std::string absent = "model: {shared}/model\ndata:\n  train: absent.jsonl\n";
  Mistake other = train(
      "TokensOfAnotherTokenizer", "--set data.train={at}/other.tokens",
      {"{at}/other.tokens was made with another tokenizer.json", "make it again from the JSONL"});
  other.make = [](Place& place) {
    const std::string tokenizer = place.at + "/tokenizer";
    const std::string train = place.shared + "/train.jsonl";
    cli::Shoal({"data", "tokenizer", train, "--vocabulary", "280", "--output", tokenizer});
    cli::Shoal({"model", "init", "--shape", "tiny", "--tokenizer", tokenizer, "--output",
                place.at + "/other"});
    const cli::Outcome made = cli::Shoal({"data", "prepare", train, "--model", place.at + "/other",
                                          "--output", place.at + "/other.tokens"});
    EXPECT_EQ(made.code, 0) << made.err;
    return nullptr;
  };
  other.kind = Mistake::Kind::kAmong;
  return {
      {.name = "MissingData",
       .files = {{"job.yaml", absent}},
       .command = "train {at}/job.yaml",
       .says = {"{at}/job.yaml:3: data.train: cannot open {at}/absent.jsonl: No such file"}},
      {.name = "MissingDataOfAPlan",
       .files = {{"job.yaml", absent}},
       .command = "plan {at}/job.yaml",
       .says = {"{at}/job.yaml:3: data.train: cannot open {at}/absent.jsonl: No such file"}},
      train("MissingDataInSet", "--set data.train=/absent",
            {"--set data.train=/absent: cannot open /absent: No such file"}),
      train("FolderWithoutDataOfAJob", "--set data.train={at}",
            {"--set data.train={at}: {at}: no file in this folder ends with .jsonl"}),
      train("FractionOfNoSample", "--set data.validation.fraction=0.0001",
            {"--set data.validation.fraction=0.0001: 0.0001 of 50 samples is none; at least 1 is "
             "needed"}),
      train("NoFileOfATemplate", "--set data.template={at}/gone.jinja",
            {"cannot open {at}/gone.jinja: No such file"}),
      train(
          "PairsExpected", "--set train.objective=dpo",
          {"{shared}/train.jsonl:1: no 'chosen' and 'rejected' are there", "train.objective: dpo"}),
      train("DocumentsExpected", "--set train.objective=pretrain --set data.template=auto",
            {"{shared}/train.jsonl:1: no 'text' is there", "train.objective: pretrain"}),
      {.name = "MissingDataOfASimulation",
       .files = {{"job.yaml", Job()}},
       .command = "simulate {at}/job.yaml --data {at}/absent",
       .says = {"--data: cannot open {at}/absent: No such file"}},
      other,
  };
}

// What runs all the same, with a warning.
std::vector<Mistake> Warnings() {
  return {
      {.name = "MinibatchAboveTheData",
       .files = {{"job.yaml", Job("train: {minibatch_samples: 100}\n")}},
       .command = "train {at}/job.yaml --steps 1",
       .says = {"train.minibatch_samples is 100, and there are 50 samples", "about 2.0 times"},
       .code = 0,
       .kind = Mistake::Kind::kWarning,
       .program = true},
      {.name = "SequencesAbovePositions",
       .files = {{"job.yaml", Job()}},
       .command = "train {at}/job.yaml --steps 1 --set model={at}/model",
       .says = {"the model was made for 16 positions", "data.max_sequence_tokens: 16",
                "data.oversize: skip or truncate"},
       .code = 0,
       .kind = Mistake::Kind::kWarning,
       .make =
           [](Place& place) {
             CopyModel(place);
             Edit(place, "config.json", "131072", "16");
             return nullptr;
           },
       .program = true},
      {.name = "EvalWithAnotherTemplate",
       .command = "eval --model {shared}/model --data {shared}/train.jsonl --template plain "
                  "--limit 1 --answers 0",
       .says = {"the template is plain", "made for chatml; say --template chatml"},
       .code = 0,
       .kind = Mistake::Kind::kWarning},
  };
}

}  // namespace

std::vector<Mistake> DataMistakes() {
  std::vector<Mistake> all;
  for (const auto& part : {Files(), Samples(), OfJobs(), Warnings()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace shoal::testing
