#include <unistd.h>

#include <filesystem>

#include "cli/run/run_lock.h"
#include "cli/testing/command_line.h"
#include "cli/testing/fake_coordinator.h"
#include "tests/mistakes/mistake.h"
#include "worker/backend/open/open_device.h"

namespace shoal::testing {
namespace {

namespace fs = std::filesystem;

Mistake OfTrain(const std::string& name, const std::string& more, std::vector<std::string> says) {
  return {.name = name,
          .files = {{"job.yaml", Job()}},
          .command = "train {at}/job.yaml " + more,
          .says = std::move(says)};
}

// {at}/out: what a finished run left.
std::shared_ptr<void> CopyRun(Place& place) {
  fs::copy(place.shared + "/out", place.at + "/out", fs::copy_options::recursive);
  return nullptr;
}

Mistake After(Mistake mistake, std::function<std::shared_ptr<void>(Place&)> make) {
  mistake.make = std::move(make);
  return mistake;
}

std::shared_ptr<void> DamageRun(Place& place) {
  CopyRun(place);
  fs::resize_file(place.at + "/out/step-00000001/server-0000.shard", 100);
  return nullptr;
}

std::vector<Mistake> Resumes() {
  Mistake other = After(
      OfTrain("CheckpointOfAnotherModel", "--resume --set model={at}/other --set train.steps=2",
              {}),
      [](Place& place) {
        const cli::Outcome made =
            cli::Shoal({"model", "init", "--shape", "tiny", "--vocabulary", "640", "--tokenizer",
                        place.shared + "/tokenizer", "--output", place.at + "/other"});
        EXPECT_EQ(made.code, 0) << made.err;
        return CopyRun(place);
      });
  other.says = {"step-00000001 is a checkpoint of another model than the job's; name the right"};
  other.kind = Mistake::Kind::kAmong;
  other.program = true;
  return {
      OfTrain("ResumeAndOverwrite", "--resume --overwrite", {"--resume excludes --overwrite"}),
      OfTrain("NothingToResume", "--resume",
              {"--resume: there is no complete checkpoint in {at}/out"}),
      After(OfTrain("NoSuchStepToResume", "--resume=7",
                    {"--resume=7: {at}/out has checkpoints of steps 1"}),
            CopyRun),
      After(OfTrain("NoStepToResume", "--resume=soon",
                    {"--resume=soon: expected nothing, auto, or a checkpoint's step"}),
            CopyRun),
      After(OfTrain("EarlierRunInTheFolder", "",
                    {"{at}/out holds the checkpoint of step 1: go on from it with --resume",
                     "--overwrite", "another checkpoint.directory"}),
            CopyRun),
      After(OfTrain("DamagedCheckpoint", "--resume",
                    {"no checkpoint before it is whole", "server-0000.shard"}),
            DamageRun),
      After({.name = "DamagedCheckpointToVerify",
             .command = "checkpoint verify {at}/out",
             .says = {"damaged file(s) under {at}/out: resume from an older checkpoint"}},
            DamageRun),
      After({.name = "DamagedCheckpointToExport",
             .command = "checkpoint export {at}/out --output {at}/model",
             .says = {"{at}/out/step-00000001/server-0000.shard"}},
            DamageRun),
      other,
      After(OfTrain("ResumeWithOtherData", "--resume --set data.seed=9",
                    {"--resume from {at}/out/step-00000001 would go on with other packs of samples",
                     "data.seed (1 in the checkpoint's job, 9 now)", "--accept-changes"}),
            CopyRun),
      After(OfTrain("ResumeWithAnotherMinibatch", "--resume --set train.minibatch_samples=16",
                    {"--resume from {at}/out/step-00000001", "train.minibatch_samples (32 in",
                     "take these values back, or say --accept-changes"}),
            CopyRun),
      OfTrain("DetachFromALocalCluster", "--detach",
              {"cluster: --detach needs a cluster that stays (cluster.coordinator)"}),
      OfTrain("DetachAndOverwrite", "--detach --overwrite", {"--overwrite excludes --detach"}),
      OfTrain("StepsBeyondTheSchedule", "--steps 1000",
              {"--steps 1000 is beyond the 100 steps of {at}/job.yaml: raise train.steps"}),
  };
}

// Gives the user back who ran before.
struct UserAgain {
  ~UserAgain() { EXPECT_EQ(seteuid(before), 0); }
  uid_t before = geteuid();
};

// Root may write anywhere, so the command runs as nobody until what is returned goes.
std::shared_ptr<void> AsAnotherUser(Place& place) {
  fs::create_directory(place.at + "/theirs");
  fs::permissions(place.at + "/theirs", fs::perms::owner_read | fs::perms::owner_exec);
  auto again = std::make_shared<UserAgain>();
  constexpr uid_t kNobody = 65534;
  EXPECT_TRUE(again->before != 0 || seteuid(kNobody) == 0);
  return again;
}

std::vector<Mistake> Folders() {
  return {
      OfTrain("FolderInProc", "--set checkpoint.directory=/proc/x",
              {"--set checkpoint.directory=/proc/x: cannot create folder /proc/x"}),
      OfTrain("FolderUnderADevice", "--set checkpoint.directory=/dev/null/x",
              {"--set checkpoint.directory=/dev/null/x: cannot create folder /dev/null/x",
               "Not a directory"}),
      After(OfTrain("FolderOfAnotherUser", "--set checkpoint.directory={at}/theirs/out",
                    {"checkpoint.directory={at}/theirs/out: cannot create folder",
                     "Permission denied"}),
            AsAnotherUser),
      After(OfTrain("SecondTrainInOneFolder", "",
                    {"{at}/job.yaml:6: checkpoint.directory: another shoal train (process ",
                     "is using {at}/out: wait for it, or name another checkpoint.directory"}),
            [](Place& place) {
              return std::make_shared<cli::RunLock>(cli::RunLock::Take(place.at + "/out").value());
            }),
      OfTrain("NoCertificates", "--tls {at}/absent",
              {"--tls: cannot open {at}/absent/tls.crt: No such file or directory"}),
      {.name = "CertificatesThatAreThere",
       .command = "tls init {at}",
       .says = {"{at} is there already, and nothing of it is replaced"}},
      OfTrain("TraceInAMissingFolder", "--trace {at}/absent/trace.json",
              {"--trace: cannot create {at}/absent/trace.json: No such file or directory"}),
      {.name = "SimulatedTraceInAMissingFolder",
       .files = {{"job.yaml", Job()}},
       .command = "simulate {at}/job.yaml --steps 1 --trace {at}/absent/trace.json",
       .says = {"--trace: cannot create {at}/absent/trace.json: No such file or directory"}},
  };
}

std::vector<Mistake> Machines() {
  Mistake diverged =
      OfTrain("LearningRateThatDiverges", "--set train.learning_rate=1e30 --set train.steps=5",
              {"not committed", "not finite; lower train.learning_rate"});
  diverged.code = 76;
  diverged.kind = Mistake::Kind::kAmong;
  diverged.program = true;
  diverged.never = "train.steps=5 --resume";  // the same once more
  std::vector<Mistake> all = {
      OfTrain("MemoryTooSmall",
              "--set data.microbatch_tokens=16000000 --set cluster.local.workers=1000",
              {"the job needs", "lower data.microbatch_tokens", "are available"}),
      diverged,
  };
  if (worker::UsableGpus().empty()) {
    all.push_back(OfTrain("NoGpu", "--set train.device=cuda", {"train.device c"}));
  }
  return all;
}

std::shared_ptr<void> StartCoordinator(Place& place) {
  auto coordinator = std::make_shared<cli::FakeCoordinator>();
  place.coordinator = coordinator->address();
  return coordinator;
}

std::vector<Mistake> Coordinators() {
  const std::string token = " --token-file {shared}/token";
  Mistake refused = OfTrain("NobodyListens",
                            "--set cluster.coordinator=127.0.0.1:1 "
                            "--set cluster.start_timeout_seconds=0.1" +
                                token,
                            {"coordinator at 127.0.0.1:1: ", "Connection refused",
                             "nothing listens there; is it started, on this port?"});
  refused.code = 1;
  refused.kind = Mistake::Kind::kAmong;
  refused.program = true;
  return {
      refused,
      {.name = "UnknownHost",
       .command = "status --coordinator no-such-host.invalid:4000" + token,
       .says = {"coordinator at no-such-host.invalid:4000: ",
                "cannot find host no-such-host.invalid; look at its name"},
       .code = 1},
      {.name = "NobodyListensToStatus",
       .command = "status --coordinator 127.0.0.1:1" + token,
       .says = {"coordinator at 127.0.0.1:1: ", "Connection refused: nothing listens there"},
       .code = 1},
      {.name = "AddressWithoutAPort",
       .command = "status --coordinator localhost" + token,
       .says = {"--coordinator: is 'localhost', expected HOST:PORT"}},
      {.name = "AListWithAGap",
       .command = "status --coordinator head:4000,,other:4000" + token,
       .says = {"--coordinator: is 'head:4000,,other:4000', expected HOST:PORT, or several with "
                "commas"}},
      After({.name = "WrongToken",
             .command = "status --coordinator {coordinator}" + token,
             .says = {"coordinator at {coordinator}: ", "has no token, or another one",
                      "the same --token-file or SHOAL_TOKEN"},
             .code = 1},
            StartCoordinator),
      {.name = "NoToken",
       .command = "status --coordinator 127.0.0.1:1",
       .says = {"no token: name a file with --token-file or set SHOAL_TOKEN"}},
      OfTrain("NoTokenToTrain", "--set cluster.coordinator=127.0.0.1:1",
              {"no token: name a file with --token-file or set SHOAL_TOKEN"}),
      OfTrain("MetricsPortOfOthers", "--set cluster.coordinator=127.0.0.1:1 --metrics-port 9400",
              {"--metrics-port is for processes that shoal train starts", "127.0.0.1:1"}),
      OfTrain("MetricsPortBeyondAll", "--metrics-port 65536", {"--metrics-port", "65536"}),
      OfTrain("MissingTokenFile", "--set cluster.coordinator=127.0.0.1:1 --token-file {at}/absent",
              {"cannot open {at}/absent: No such file"}),
      {.name = "EmptyTokenFile",
       .files = {{"token", "\n"}},
       .command = "status --coordinator 127.0.0.1:1 --token-file {at}/token",
       .says = {"{at}/token: the token is empty"}},
  };
}

}  // namespace

std::vector<Mistake> RunMistakes() {
  std::vector<Mistake> all;
  for (const auto& part : {Resumes(), Folders(), Machines(), Coordinators()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace shoal::testing
