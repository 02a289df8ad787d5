#include "tests/mistakes/mistake.h"

namespace shoal::testing {
namespace {

Mistake Of(const std::string& name, const std::string& command, std::vector<std::string> says) {
  return {.name = name, .command = command, .says = std::move(says)};
}

Mistake WithFile(const std::string& name, const std::string& file, const std::string& text,
                 const std::string& command, std::vector<std::string> says) {
  return {.name = name,
          .files = {{"job.yaml", Job()}, {file, text}},
          .command = command,
          .says = std::move(says)};
}

std::vector<Mistake> Words() {
  return {
      Of("UnknownCommand", "kubectl",
         {"unknown command 'kubectl'; known are train, generate", "(see shoal --help)"}),
      Of("UnknownCommandLikeNone", "xyzzy", {"unknown command 'xyzzy'; known are train"}),
      Of("MisspeltCommand", "trian job.yaml", {"unknown command 'trian'; did you mean train?"}),
      Of("MisspeltVerb", "data inspekt",
         {"unknown command 'inspekt'; did you mean inspect?", "(see shoal data --help)"}),
      Of("UnknownVerb", "checkpoint prune", {"unknown command 'prune'; known are list, verify,"}),
      Of("NoVerb", "data",
         {"shoal data what? say synth, tokenizer, prepare, inspect", "(see shoal data --help)"}),
      Of("MisspeltOption", "generate --promt x",
         {"unknown option --promt; did you mean --prompt?", "(see shoal generate --help)"}),
      Of("UnknownOption", "train job.yaml --distributed",
         {"unknown option --distributed (see shoal train --help)"}),
      Of("UnknownLetter", "train job.yaml -x", {"unknown option -x (see shoal train --help)"}),
      Of("SurplusArgument", "plan job.yaml more", {"not expected: more (see shoal plan --help)"}),
      Of("NoJobToTrain", "train", {"job is required (see shoal train --help)"}),
      Of("NoJobToPlan", "plan", {"job is required (see shoal plan --help)"}),
  };
}

std::vector<Mistake> OfModels() {
  const std::string generate = "generate --model {shared}/model ";
  return {
      Of("NoPrompt", generate, {"say --prompt TEXT, --prompts FILE (a prompt a line), or --chat"}),
      Of("NoModelToGenerate", "generate --prompt x", {"--model is required"}),
      Of("NothingToGenerate", generate + "--prompt x --max-new-tokens 0",
         {"--max-new-tokens: is '0', expected an integer of at least 1"}),
      Of("TemperatureThatIsNoNumber", generate + "--prompt x --temperature nan",
         {"--temperature: is 'nan', expected a number of at least 0"}),
      Of("ComputeInHalf", generate + "--prompt x --compute fp16",
         {"--compute: fp16 not in {auto,fp32,bf16}"}),
      Of("NoDataToEvaluate", "eval --model {shared}/model", {"--data is required"}),
      Of("MissingDataToEvaluate", "eval --model {shared}/model --data {at}/absent.jsonl",
         {"cannot open {at}/absent.jsonl: No such file"}),
      Of("NegativeAnswers", "eval --model {shared}/model --data x --answers -1",
         {"--answers: is '-1', expected an integer of at least 0"}),
      Of("StepsOfZero", "train job.yaml --steps 0",
         {"--steps: is '0', expected an integer of at least 1 (see shoal train --help)"}),
  };
}

std::vector<Mistake> OfData() {
  return {
      Of("NoModelToInspect", "data inspect {shared}/train.jsonl", {"--model is required"}),
      Of("MissingDataForATokenizer", "data tokenizer {at}/absent.jsonl --output {at}/tokenizer",
         {"cannot open {at}/absent.jsonl: No such file"}),
      Of("VocabularyBelowBytes",
         "data tokenizer {shared}/train.jsonl --vocabulary 5 --output {at}/tokenizer",
         {"a vocabulary of 5 is not possible: from 260"}),
      Of("UnknownKindOfData", "data synth --kind poems --output {at}/x",
         {"unknown kind 'poems'; known are arithmetic, sort, extract and mixed"}),
      Of("UnknownLengths", "data synth --lengths long --output {at}/x",
         {"lengths 'long': expected one of longalign"}),
      Of("NoSamples", "data synth --samples 0 --output {at}/x",
         {"--samples: is '0', expected an integer of at least 1"}),
      Of("OutputInAMissingFolder", "data synth --output {at}/absent/x.jsonl",
         {"cannot create {at}/absent/x.jsonl: No such file or directory"}),
  };
}

std::vector<Mistake> OfPlans() {
  const std::string simulate = "simulate {at}/job.yaml --cluster {at}/c.yaml";
  return {
      WithFile("TypoInACluster", "c.yaml", "devices: 8\nnode_lnk: {}\n", simulate,
               {"{at}/c.yaml:2: unknown key 'node_lnk'; did you mean node_link?"}),
      WithFile("UnknownKeyOfACluster", "c.yaml", "gpus: 8\n", simulate,
               {"{at}/c.yaml:1: unknown key 'gpus'; known are", "devices"}),
      WithFile("UnclosedBraceInACluster", "c.yaml", "node_link: {rate: 1GB/s\ndevices: 8\n",
               simulate, {"{at}/c.yaml:1: not valid YAML: the { is never closed", "1GB/s'"}),
      WithFile("RateWithoutAUnit", "c.yaml", "devices: 8\nnode_link: {rate: 100}\n", simulate,
               {"{at}/c.yaml:2: node_link.rate", "3.1GB/s"}),
      WithFile("MissingCluster", "x", "", "simulate {at}/job.yaml --cluster {at}/absent.yaml",
               {"cannot open {at}/absent.yaml: No such file"}),
      WithFile("UnknownLengthsToSimulate", "x", "", "simulate {at}/job.yaml --lengths sharks",
               {"lengths 'sharks': expected one of longalign"}),
      WithFile("DataAndLengths", "x", "", "simulate {at}/job.yaml --lengths aime --data {at}/x",
               {"--data and --lengths exclude each other"}),
      WithFile("UnknownShapeToSimulate", "x", "", "simulate {at}/job.yaml --shape 9b",
               {"--shape 9b: choose one of 1.3b"}),
      WithFile("SimulateNothing", "x", "", "simulate {at}/job.yaml --steps 0",
               {"--steps: Value 0 not in range 1 to 1000000"}),
      WithFile("DrawWithoutAPipeline", "x", "", "plan {at}/job.yaml --draw {at}/x.svg",
               {"--draw draws the schedule of a pipeline, and {at}/job.yaml has none",
                "see cluster.pipeline"}),
      WithFile("PlanNothing", "x", "", "plan {at}/job.yaml --steps 0",
               {"--steps: is '0', expected an integer of at least 1"}),
  };
}

std::vector<Mistake> OfRuns() {
  return {
      Of("StatusOfNothing", "status",
         {"which coordinator? name a job file, --run or --coordinator"}),
      Of("JobsOfNothing", "jobs", {"which coordinator? name a job file, --run or --coordinator"}),
      Of("StopOfNoJob", "stop", {"id is required"}),
      Of("AttachToNoCoordinator", "attach job-1 --run {at}",
         {"no shoal train runs a local cluster with checkpoints in {at}"}),
      Of("StatusOfNoRun", "status --run {at}",
         {"no shoal train runs a local cluster with checkpoints in {at}",
          "give --coordinator HOST:PORT and --token-file"}),
      Of("StatusOfTwo", "status job.yaml --run x", {"job excludes --run"}),
      Of("CheckpointsOfNoFolder", "checkpoint list {at}/absent",
         {"{at}/absent: no such directory"}),
      Of("NoCheckpointToVerify", "checkpoint verify {shared}/model",
         {"{shared}/model: no complete checkpoint there"}),
      Of("NoCheckpointToExport", "checkpoint export {shared}/model --output {at}/x",
         {"{shared}/model: no complete checkpoint there"}),
      Of("ExportOntoAModel", "checkpoint export {shared}/out --output {shared}/model",
         {"{shared}/model holds a model already: remove it or choose another --output"}),
      Of("ExportNowhere", "checkpoint export {shared}/out", {"--output is required"}),
      Of("UnknownTransportToMeasure", "bench transport --transports rdma",
         {"unknown transport 'rdma'; known are shm, verbs, tcp"}),
      Of("DoctorOfNoJob", "doctor {at}/absent.yaml",
         {"cannot open {at}/absent.yaml: No such file"}),
  };
}

}  // namespace

std::vector<Mistake> CommandMistakes() {
  std::vector<Mistake> all;
  for (const auto& part : {Words(), OfModels(), OfData(), OfPlans(), OfRuns()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace shoal::testing
