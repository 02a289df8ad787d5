#include "tests/mistakes/mistake.h"

namespace shoal::testing {
namespace {

// A job file of its own, not the one that is right with lines more.
Mistake Whole(const std::string& name, const std::string& text, std::vector<std::string> says) {
  return {.name = name,
          .files = {{"job.yaml", text}},
          .command = "plan {at}/job.yaml",
          .says = std::move(says)};
}

std::vector<Mistake> Keys() {
  return {
      InJob("TypoInAKey", "train:\n  learning_rat: 1\n",
            {"{at}/job.yaml:8: unknown key 'learning_rat' in train", "mean learning_rate?"}),
      InJob("TypoInASection", "trian: {steps: 1}\n",
            {"{at}/job.yaml:7: unknown key 'trian'", "did you mean train?"}),
      InJob("TypoInASectionBelow", "cluster: {local: {server: 1}}\n",
            {"{at}/job.yaml:7: unknown key 'server' in cluster.local", "did you mean servers?"}),
      InJob("KeyInTheWrongSection", "learning_rate: 1\n",
            {"{at}/job.yaml:7: unknown key 'learning_rate'", "did you mean train.learning_rate?"}),
      InJob("SectionOfAnotherTool", "adapters: {rank: 8}\n",
            {"{at}/job.yaml:7: unknown key 'adapters'", "known are model, data,"}),
      InJob(
          "KeyOfAnotherTool", "train: {lr: 1e-4}\n",
          {"{at}/job.yaml:7: unknown key 'lr' in train", "known are objective,", "learning_rate"}),
      InJob("KeyTwice", "model: other\n", {"{at}/job.yaml:7: model is given twice"}),
      InJob("SectionAsAValue", "train: 5\n", {"{at}/job.yaml:7: train is not a map of keys"}),
      Whole("NoModel", "data: {train: x}\n", {"{at}/job.yaml: model is missing"}),
      Whole("NoData", "model: x\n", {"{at}/job.yaml: data.train is missing"}),
      InSet("SetWithoutAValue", "train.steps",
            {"--set train.steps: expected key=value, like train.steps=10"}),
      InSet("TypoInSet", "train.stps=3",
            {"--set train.stps=3: unknown key 'stps' in train", "did you mean steps?"}),
      InSet("BadValueInSet", "train.steps=none",
            {"--set train.steps=none: train.steps is 'none'", "expected an integer from 1"}),
      InSet("BrokenYamlInSet", "train.steps=[1", {"--set train.steps=[1: not valid YAML"}),
  };
}

std::vector<Mistake> Values() {
  return {
      InJob("WordForANumber", "train: {steps: many}\n",
            {"{at}/job.yaml:7: train.steps is 'many', expected an integer from 1"}),
      InJob("FractionForAnInteger", "train: {steps: 1.5}\n",
            {"{at}/job.yaml:7: train.steps is '1.5', expected an integer"}),
      InJob("NegativeSteps", "train: {steps: -3}\n",
            {"{at}/job.yaml:7: train.steps is '-3', expected an integer from 1"}),
      InJob("ExponentForAnInteger", "train: {steps: 1e3}\n",
            {"{at}/job.yaml:7: train.steps is '1e3', expected an integer"}),
      InJob("UnitBehindANumber", "train: {learning_rate: 1e-4x}\n",
            {"{at}/job.yaml:7: train.learning_rate is '1e-4x', expected a number of at least 0"}),
      InJob("NothingForANumber", "train: {steps: }\n",
            {"{at}/job.yaml:7: train.steps is empty, expected an integer"}),
      InSet("YesForTrue", "data.shuffle=yes", {"data.shuffle is 'yes', expected true or false"}),
      InSet("ListForText", "data.train=[a,b]", {"data.train is a list, expected text"}),
      InSet("EmptyText", "data.train=", {"data.train is empty, expected text"}),
      InSet("UnknownTemplate", "data.template=jinja",
            {"data.template is 'jinja', expected auto, plain, chatml, llama3 or the path of a "
             "file.jinja"}),
      InSet("UnknownTransport", "service.transports=[rdma]",
            {"service.transports has the unknown transport 'rdma'", "shm, verbs (RDMA), tcp"}),
      InSet("NoTransport", "service.transports=[]",
            {"service.transports is an empty list", "shm, verbs, tcp"}),
      InSet("TinyPartitions", "service.partition_bytes=4",
            {"service.partition_bytes is '4', expected bytes from 1.0 KiB", "like 4MiB"}),
      InSet("UnknownShape", "emulate.shape=8B",
            {"emulate.shape has the unknown shape '8B'", "known are 1.3b"}),
      InJob("UnknownSchedule", "cluster:\n  pipeline: {stages: 2, schedule: zb}\n",
            {"{at}/job.yaml:8: cluster.pipeline.schedule: 'zb' is no schedule", "1F1B"}),
      InSet("TypoInFields", "data.fields.promt=q",
            {"data.fields has the unknown key 'promt'", "did you mean prompt?"}),
      InSet("FieldsAsAList", "data.fields=[prompt]",
            {"data.fields is not a map like {prompt: question, completion: answer}"}),
      InSet("BetaOfOne", "train.beta1=1",
            {"train.beta1 is '1', expected a number of at least 0 and below 1"}),
      InJob("CoordinatorWithoutAPort", "cluster: {coordinator: localhost}\n",
            {"{at}/job.yaml:7: cluster.coordinator is 'localhost', expected HOST:PORT"}),
  };
}

std::vector<Mistake> Contradictions() {
  return {
      InJob("HereAndThere", "cluster: {coordinator: 'a:1', local: {servers: 1}}\n",
            {"{at}/job.yaml:7: cluster.coordinator contradicts cluster.local", "here or there"}),
      InJob("WorkersNoMultipleOfStages", "cluster: {local: {workers: 3}, pipeline: {stages: 2}}\n",
            {"{at}/job.yaml:7: cluster.local.workers (3)", "cluster.pipeline.stages (2)"}),
      InJob("MoreStagesThanLayers", "cluster: {pipeline: {stages: 200}}\n",
            {"{at}/job.yaml:7: cluster.pipeline.stages: 200 stages of 1 chunks are more than there",
             "2 layers, embedding and head", "use fewer stages"}),
      {.name = "MoreStagesThanLayersInSet",
       .files = {{"job.yaml", Job("cluster: {local: {workers: 200}}\n")}},
       .command = "train {at}/job.yaml --set cluster.pipeline.stages=200",
       .says = {"--set cluster.pipeline.stages=200: 200 stages of 1 chunks are more than there"}},
      InJob("WarmUpAboveSteps", "train: {warmup_steps: 200}\n",
            {"{at}/job.yaml:7: train.warmup_steps (200) is more than train.steps (100)"}),
      InJob("MinimumAbovePeak", "train: {minimum_learning_rate: 1}\n",
            {"{at}/job.yaml:7: train.minimum_learning_rate (1)", "train.learning_rate (0.0001)"}),
      InJob("PushOnceAStepInExactMode", "train: {push: step}\nservice: {accumulate: exact}\n",
            {"{at}/job.yaml:7: train.push step contradicts service.accumulate exact",
             "leave train.push to auto"}),
      InJob("DynamicWithLayer", "plan: {assignment: dynamic}\ntrain: {synchronization: layer}\n",
            {"{at}/job.yaml:7: plan.assignment dynamic contradicts train.synchronization layer"}),
      InSet("SequencesAboveAMicrobatch", "data.max_sequence_tokens=4096",
            {"data.max_sequence_tokens (4096) is more than data.microbatch_tokens (2048)"}),
      {.name = "WorkersWithoutACoordinator",
       .files = {{"job.yaml", Job("cluster: {workers: 2}\n")}},
       .command = "train {at}/job.yaml",
       .says = {"{at}/job.yaml: cluster.servers and cluster.workers go with cluster.coordinator",
                "say cluster.local.servers and cluster.local.workers"}},
  };
}

std::vector<Mistake> Adapters() {
  return {
      InJob("AdaptersOfNoMatrix", "lora: {rank: 4, targets: [attention, q_prj]}\n",
            {"{at}/job.yaml:7: lora.targets: 'q_prj' matches no matrix", "did you mean q_proj?"}),
      InJob("AdaptersOfTheHead", "lora: {rank: 4, targets: [lm_head]}\n",
            {"{at}/job.yaml:7: lora.targets: 'lm_head' matches no matrix"}),
      InJob("RankOfNoMatrix",
            "lora:\n  rank: 4\n  targets: [mlp]\n  patterns:\n    - {match: q_proj, rank: 8}\n",
            {"{at}/job.yaml:10: lora.patterns: no matrix with an adapter (down_proj, gate_proj, "
             "up_proj) has 'q_proj' as the first that matches it"}),
      InJob("AlphaWithoutARank", "lora: {alpha: 32}\n",
            {"{at}/job.yaml:7: lora.alpha needs lora.rank"}),
      InJob("AlphaOfAnotherAdapter", "lora: {from: x, alpha: 32}\n",
            {"{at}/job.yaml:7: lora.alpha contradicts lora.from: the adapter there says it"}),
      InJob("AdaptersOfNoTarget", "lora: {rank: 4, targets: []}\n",
            {"{at}/job.yaml:7: lora.targets is empty: name matrices, or leave it out for all"}),
      InJob("EmulatedAdapters", "lora: {rank: 4}\nemulate: {shape: 25m}\n",
            {"{at}/job.yaml:7: lora.rank contradicts emulate.shape: its time is that of training "
             "the whole model"}),
      InJob("AdaptersOffWithoutAny",
            "train: {objective: dpo}\npreference: {reference: adapter-off}\n",
            {"{at}/job.yaml:8: preference.reference adapter-off needs adapters: say lora.rank"}),
      InJob("RankOfAnotherAdapter", "lora: {rank: 4, from: x}\n",
            {"{at}/job.yaml:7: lora.rank contradicts lora.from: the adapter there says it"}),
      {.name = "GroupOfTheModelBesideAdapters",
       .files = {{"job.yaml", Job("lora: {rank: 4}\ntrain: {groups: [{match: \"*norm*\", "
                                  "weight_decay: 0}]}\n")}},
       .command = "train {at}/job.yaml",
       .says =
           {"{at}/job.yaml:8: train.groups: no tensor of the adapters is of the group '*norm*'"}},
      InJob("DropoutOfAll", "lora: {rank: 4, dropout: 1}\n",
            {"{at}/job.yaml:7: lora.dropout is '1', expected a number of at least 0 and below 1"}),
      InJob("NoAdapterThere", "lora: {from: nowhere}\n",
            {"{at}/job.yaml:7: lora.from: ", "{at}/nowhere/adapter_config.json"}),
      {.name = "AdapterOfAnotherMethod",
       .files = {{"job.yaml", Job("lora: {from: .}\n")},
                 {"adapter_config.json", "{\"peft_type\": \"IA3\"}"}},
       .command = "train {at}/job.yaml",
       .says = {"{at}/job.yaml:7: lora.from: {at}/",
                "adapter_config.json: peft_type: 'IA3' is not supported; LORA is"}},
  };
}

std::vector<Mistake> Documents() {
  return {
      InJob("UnclosedBrace", "cluster:\n  local: {servers: 1\ntrain:\n  steps: 3\n",
            {"{at}/job.yaml:8: not valid YAML: the { is never closed", "local: {servers: 1'"}),
      InJob("UnclosedList", "service:\n  transports: [shm, tcp\ntrain:\n  steps: 3\n",
            {"{at}/job.yaml:8: not valid YAML: the [ is never closed", "transports: [shm, tcp'"}),
      InJob("Tab", "train:\n\tsteps: 3\n",
            {"{at}/job.yaml:8: not valid YAML: a tab indents this line; indent with spaces",
             "'steps: 3'"}),
      InJob("WrongIndentation", "train:\n  steps: 3\n seed: 1\n",
            {"{at}/job.yaml:9: not valid YAML", "'seed: 1'"}),
      InJob("TwoDocuments", "---\nmodel: x\n",
            {"{at}/job.yaml:7: a second YAML document, expected one"}),
      InJob("JobNotInUtf8", "emulate: {shape: \xE4}\n", {"{at}/job.yaml:7: not UTF-8"}),
      Whole("EmptyJob", "", {"{at}/job.yaml: model is missing"}),
      Whole("JobAsAList", "- model\n- data\n", {"{at}/job.yaml:1: the job is not a map of keys"}),
      Whole("JobAsText", "just text\n", {"{at}/job.yaml:1: the job is not a map of keys"}),
      {.name = "MissingJob",
       .command = "plan {at}/absent.yaml",
       .says = {"cannot open {at}/absent.yaml: No such file"}},
      {.name = "FolderForAJob",
       .command = "plan {at}",
       .says = {"{at} is a folder, a file was expected"}},
  };
}

}  // namespace

std::vector<Mistake> JobMistakes() {
  std::vector<Mistake> all;
  for (const auto& part : {Keys(), Values(), Contradictions(), Adapters(), Documents()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace shoal::testing
