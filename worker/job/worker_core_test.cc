#include "worker/job/worker_core.h"

#include <string>
#include <vector>

#include "core/job/shard_map_message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using What = WorkerCore::What;

const absl::Time kNow = absl::UnixEpoch();
const absl::Status kNoAnswer = absl::UnavailableError("no answer");

proto::JoinJobReply Ready(int64_t term = 1) {
  proto::JoinJobReply reply;
  reply.set_ready(true);
  reply.set_term(term);
  reply.set_job_id("job-a");
  reply.set_run(2);
  reply.set_formation(3);
  return reply;
}

proto::NextStepReply Work(int64_t step, int64_t term = 1) {
  proto::NextStepReply reply;
  reply.set_term(term);
  reply.mutable_work()->set_step(step);
  return reply;
}

proto::NextStepReply Over(bool job, int64_t term = 1) {
  proto::NextStepReply reply;
  reply.set_term(term);
  job ? reply.set_job_over(true) : reply.set_join_again(true);
  return reply;
}

proto::NextStepReply Nothing() {
  proto::NextStepReply reply;
  reply.set_term(1);
  reply.set_wait(true);
  return reply;
}

proto::FinishedReport Report(int64_t step) {
  proto::FinishedReport report;
  report.set_step(step);
  return report;
}

class WorkerCoreTest : public ::testing::Test {
 protected:
  WorkerCoreTest() {
    core_.OnJoined(Ready());
    core_.OnMade(proto::NextStepRequest::PUSHES_OF_STEPS);
  }
  What Next() { return core_.Next(kNow); }
  void Run(int64_t step) {
    core_.OnAnswered(Work(step), kNow);
    ASSERT_EQ(Next(), What::kRun);
    EXPECT_EQ(core_.work().step(), step);
    core_.OnRan(Report(step));
  }

  WorkerCore core_{7, /*stays=*/true};
};

TEST_F(WorkerCoreTest, AsksUntilThereIsAJob) {
  WorkerCore core(7, /*stays=*/true);
  EXPECT_EQ(core.Next(kNow), What::kJoin);
  EXPECT_EQ(core.join_question().incarnation(), 7u);
  core.OnJoined(proto::JoinJobReply());
  EXPECT_EQ(core.Next(kNow), What::kJoin);
  EXPECT_EQ(core.pause(), absl::ZeroDuration());
  core.OnJoined(kNoAnswer);
  EXPECT_EQ(core.Next(kNow), What::kJoin);
  EXPECT_GT(core.pause(), absl::ZeroDuration());
  core.OnJoined(Ready());
  EXPECT_EQ(core.Next(kNow), What::kMake);
  core.OnLeftBehind();
  EXPECT_EQ(core.Next(kNow), What::kJoin);
}

// Two partitions, at servers 0 and 1.
proto::JoinJobReply WholeMap(int64_t generation) {
  proto::JoinJobReply reply = Ready();
  reply.set_token_file("tokens");
  reply.add_model_files()->set_name("model.safetensors");
  reply.mutable_job()->set_model("model");
  for (int server = 0; server < 2; ++server) {
    reply.add_servers()->set_address(std::to_string(server));
    reply.mutable_shard_map()->add_servers(server);
  }
  reply.mutable_shard_map()->set_generation(generation);
  reply.add_stages()->set_index(3);
  return reply;
}

// Partition 1 comes to server 0.
plan::MapChange Change(int64_t from, int64_t to) {
  return {.from = from, .to = to, .partitions = {{.id = 1, .servers = {0}, .reader = 0}}};
}
proto::JoinJobReply Moved(const plan::MapChange& change) {
  proto::JoinJobReply reply = Ready();
  reply.clear_job_id();
  reply.set_map_change(plan::ToBytes(change));
  return reply;
}
proto::JoinJobReply Moved(int64_t from, int64_t to) { return Moved(Change(from, to)); }

TEST_F(WorkerCoreTest, CompletesWhatHasChangedFromWhatItKnows) {
  WorkerCore core(7, /*stays=*/true);
  EXPECT_FALSE(core.join_question().has_known());
  core.OnJoined(WholeMap(5));
  const proto::KnownMap known = core.join_question().known();
  EXPECT_EQ(known.job_id(), "job-a");
  EXPECT_EQ(known.run(), 2);
  EXPECT_EQ(known.generation(), 5);
  EXPECT_EQ(core.left_behind_question(7).known().generation(), 5);
  core.OnLeftBehind();
  proto::JoinJobReply moved = Moved(5, 8);
  moved.set_formation(4);
  core.OnJoined(moved);
  EXPECT_EQ(core.Next(kNow), What::kMake);
  proto::JoinJobReply whole = WholeMap(8);
  whole.set_formation(4);
  whole.mutable_shard_map()->set_servers(1, 0);
  EXPECT_EQ(core.join().SerializeAsString(), whole.SerializeAsString());
  EXPECT_TRUE(IsSamePart(core.join(), WholeMap(5)));
}

// Peers are left out where they are those of before; whoever is alone has none.
TEST_F(WorkerCoreTest, KeepsItsPeersUntilItIsToldOfOthers) {
  const auto with_peers = [](proto::JoinJobReply reply, int peers, int workers) {
    for (int peer = 0; peer < peers; ++peer) {
      reply.add_peers()->set_index(peer);
    }
    reply.set_workers(workers);
    return reply;
  };
  WorkerCore core(7, /*stays=*/true);
  const auto peers_after = [&core](const proto::JoinJobReply& reply) {
    core.OnJoined(reply);
    EXPECT_EQ(core.Next(kNow), What::kMake);
    return core.join().peers_size();
  };
  EXPECT_EQ(peers_after(with_peers(WholeMap(5), 3, 3)), 3);
  EXPECT_EQ(peers_after(with_peers(Moved(5, 6), 0, 3)), 3);
  EXPECT_TRUE(IsSamePart(core.join(), with_peers(WholeMap(5), 3, 3)));
  EXPECT_EQ(peers_after(with_peers(Moved(6, 7), 2, 2)), 2);
  EXPECT_EQ(peers_after(with_peers(Moved(7, 8), 0, 1)), 0);
  proto::JoinJobReply unreachable = with_peers(Moved(8, 9), 0, 2);
  unreachable.set_without_peers("no address");
  EXPECT_EQ(peers_after(unreachable), 0);
  EXPECT_EQ(peers_after(with_peers(Moved(9, 10), 0, 2)), 0);
  EXPECT_EQ(core.join().without_peers(), "no address");
}

TEST_F(WorkerCoreTest, AsksForTheWholeMapAfterAChangeThatDoesNotFit) {
  std::vector<plan::MapChange> changes(4, Change(5, 8));
  changes[0].from = 4;
  changes[1].partitions[0].id = 2;
  changes[2].partitions[0].reader = 1;
  changes[3].to = 5;
  std::vector<proto::JoinJobReply> answers;
  for (const plan::MapChange& change : changes) {
    answers.push_back(Moved(change));
  }
  answers.push_back(Moved(5, 8));
  answers.back().set_run(3);
  answers.push_back(Moved(5, 8));
  answers.back().set_map_change("unreadable");
  proto::MapChange apart = plan::ToMessage(Change(5, 8));
  apart.add_holders(2);
  answers.push_back(Moved(5, 8));
  answers.back().set_map_change(apart.SerializeAsString());
  for (const proto::JoinJobReply& answer : answers) {
    WorkerCore core(7, /*stays=*/true);
    core.OnJoined(WholeMap(5));
    core.OnLeftBehind();
    core.OnJoined(answer);
    EXPECT_EQ(core.Next(kNow), What::kJoin) << answer.DebugString();
    EXPECT_GT(core.pause(), absl::ZeroDuration());
    EXPECT_FALSE(core.join_question().has_known());
    core.OnJoined(WholeMap(8));
    EXPECT_EQ(core.Next(kNow), What::kMake);
  }
}

// In the middle of a job whose map has generation 5.
class NewPartTest : public ::testing::Test {
 protected:
  NewPartTest() {
    core_.OnJoined(WholeMap(5));
    core_.OnMade(proto::NextStepRequest::PUSHES_OF_PACKS);
    core_.OnAnswered(Work(8), kNow);
    core_.OnRan(Report(8));
    moved_ = Moved(5, 6);
    moved_.set_formation(4);
  }
  What Answer(proto::NextStepReply reply, const proto::JoinJobReply& join) {
    *reply.mutable_join() = join;
    core_.OnAnswered(reply, kNow);
    return core_.Next(kNow);
  }
  What Make() {
    core_.OnMade(proto::NextStepRequest::PUSHES_OF_PACKS);
    return core_.Next(kNow);
  }

  WorkerCore core_{7, /*stays=*/true};
  proto::JoinJobReply moved_;
};

TEST_F(NewPartTest, IsMadeBeforeTheWorkThatCameWithIt) {
  EXPECT_EQ(core_.question().known_generation(), 5);
  EXPECT_EQ(core_.over_question().known_generation(), 0);
  EXPECT_EQ(Answer(Work(9), moved_), What::kMake);
  EXPECT_EQ(core_.join().shard_map().generation(), 6);
  EXPECT_EQ(Make(), What::kRun);
  EXPECT_EQ(core_.work().step(), 9);
  core_.OnRan(Report(9));
  EXPECT_EQ(core_.question().formation(), 4);
  EXPECT_EQ(core_.question().known_generation(), 6);
  EXPECT_EQ(core_.question().finished().step(), 9);
}

TEST_F(NewPartTest, IsAskedForWorkThatDidNotComeWithIt) {
  EXPECT_EQ(Answer(Nothing(), moved_), What::kMake);
  EXPECT_EQ(Make(), What::kAsk);
  EXPECT_FALSE(core_.question().has_finished()) << "it was taken";
}

TEST_F(NewPartTest, TakesItsWorkWithItWhereTheJobGoesOnWithoutIt) {
  EXPECT_EQ(Answer(Work(9), moved_), What::kMake);
  core_.OnLeftBehind();
  EXPECT_EQ(core_.Next(kNow), What::kJoin);
  core_.OnJoined(WholeMap(7));
  EXPECT_EQ(Make(), What::kAsk);
}

TEST_F(NewPartTest, ThatDoesNotFitIsAskedForWhole) {
  moved_.set_map_change(plan::ToBytes(Change(4, 6)));
  EXPECT_EQ(Answer(Work(9), moved_), What::kJoin);
  EXPECT_FALSE(core_.join_question().has_known());
  core_.OnJoined(WholeMap(6));
  EXPECT_EQ(Make(), What::kAsk);
}

TEST_F(NewPartTest, IsNoneForOneThatIsToldToLeave) {
  core_.Drain(kNow + absl::Seconds(25));
  EXPECT_EQ(Answer(Work(9), moved_), What::kLeave);
  EXPECT_TRUE(core_.left_a_job());
}

TEST_F(NewPartTest, OfOneThatIsToldToLeaveMeanwhileRunsNothing) {
  EXPECT_EQ(Answer(Work(9), moved_), What::kMake);
  core_.Drain(kNow + absl::Seconds(25));
  EXPECT_EQ(Make(), What::kAsk);
  EXPECT_TRUE(core_.question().leaving());
}

TEST_F(WorkerCoreTest, LeavesWhereAChangeOfAMapThatItDoesNotKnowIsAllThatItGets) {
  proto::JoinJobReply answer = Ready();
  answer.set_map_change("");  // of no partition, from generation 0 to 0
  WorkerCore core(7, /*stays=*/true);
  core.OnJoined(answer);
  EXPECT_EQ(core.Next(kNow), What::kLeave);
  EXPECT_THAT(std::string(core.end().message()), ::testing::HasSubstr("of which it knows none"));
}

TEST_F(WorkerCoreTest, TellsAReportUntilItIsTaken) {
  EXPECT_EQ(Next(), What::kAsk);
  EXPECT_EQ(core_.question().job_id(), "job-a");
  EXPECT_EQ(core_.question().run(), 2);
  EXPECT_EQ(core_.question().formation(), 3);
  EXPECT_EQ(core_.question().pushes(), proto::NextStepRequest::PUSHES_OF_STEPS);
  Run(5);
  core_.OnAnswered(kNoAnswer, kNow);
  EXPECT_EQ(Next(), What::kAsk);
  EXPECT_EQ(core_.question().finished().step(), 5);
  EXPECT_FALSE(core_.over_question().has_finished());
  core_.OnAnswered(Nothing(), kNow);
  EXPECT_FALSE(core_.question().has_finished());
}

TEST_F(WorkerCoreTest, AnAnswerOfAnEarlierLifeIsNone) {
  core_.OnAnswered(Work(1, /*term=*/4), kNow);
  core_.OnRan(Report(1));
  core_.OnAnswered(Work(2, /*term=*/3), kNow);
  EXPECT_EQ(Next(), What::kAsk);
  EXPECT_EQ(core_.question().finished().step(), 1);
  EXPECT_FALSE(core_.IsOver(Over(/*job=*/true, /*term=*/3)));
  EXPECT_TRUE(core_.IsOver(Over(/*job=*/true, /*term=*/4)));
}

TEST_F(WorkerCoreTest, StaysForTheNextJobOrLeavesWithItsOwn) {
  core_.OnAnswered(Over(/*job=*/true), kNow);
  EXPECT_EQ(Next(), What::kJoin);
  WorkerCore core(7, /*stays=*/false);
  for (const bool job : {false, true}) {
    core.OnJoined(Ready());
    core.OnMade(proto::NextStepRequest::PUSHES_OF_PACKS);
    core.OnAnswered(Over(job), kNow);
    EXPECT_EQ(core.Next(kNow), job ? What::kLeave : What::kJoin);
  }
  EXPECT_FALSE(core.left_a_job());
  EXPECT_TRUE(core.end().ok());
}

TEST_F(WorkerCoreTest, OneThatIsRefusedSaysWhy) {
  core_.OnAnswered(absl::NotFoundError("its lease is over"), kNow);
  EXPECT_EQ(Next(), What::kLeave);
  EXPECT_THAT(std::string(core_.end().message()), ::testing::HasSubstr("its lease is over"));
}

TEST_F(WorkerCoreTest, DrainedItHandsBackAndLeavesOnceNobodyNeedsIt) {
  Run(5);
  core_.Drain(kNow + absl::Seconds(25));
  EXPECT_TRUE(core_.question().leaving());
  core_.OnAnswered(Work(6), kNow);  // not taken
  EXPECT_EQ(Next(), What::kAsk);
  EXPECT_FALSE(core_.left_a_job());
  core_.OnAnswered(Over(/*job=*/false), kNow);
  EXPECT_EQ(Next(), What::kLeave);
  EXPECT_TRUE(core_.left_a_job());
  EXPECT_TRUE(core_.end().ok());
}

TEST_F(WorkerCoreTest, OutOfGraceItLeavesWithoutAnAnswer) {
  Run(5);
  core_.Drain(kNow + absl::Seconds(25));
  const absl::Time late = kNow + absl::Seconds(25);
  EXPECT_EQ(core_.Next(late), What::kAsk) << "to tell its report";
  core_.OnAnswered(kNoAnswer, late);
  EXPECT_EQ(core_.Next(late), What::kLeave);
  EXPECT_TRUE(core_.left_a_job());
}

// Whoever had no part yet, or has none any more, is taken from nothing.
TEST_F(WorkerCoreTest, DrainedWithoutAPartAtHandItLeavesTheJobThatItIsToHave) {
  for (const char* when : {"at first", "given", "between groups", "over"}) {
    WorkerCore core(7, /*stays=*/true);
    const std::string_view point = when;
    if (point != "at first") {
      core.OnJoined(Ready());
    }
    if (point == "between groups" || point == "over") {
      core.OnMade(proto::NextStepRequest::PUSHES_OF_PACKS);
      core.OnAnswered(Over(/*job=*/point == "over"), kNow);
      EXPECT_EQ(core.Next(kNow), What::kJoin);
    }
    core.DrainNow();
    EXPECT_EQ(core.Next(kNow), What::kLeave);
    EXPECT_EQ(core.left_a_job(), point == "given" || point == "between groups") << when;
    EXPECT_TRUE(core.end().ok());
  }
}

TEST_F(WorkerCoreTest, DrainedInAJobThatEndsItLeavesNone) {
  core_.Drain(kNow + absl::Seconds(25));
  core_.OnAnswered(Over(/*job=*/true), kNow);
  EXPECT_EQ(Next(), What::kLeave);
  EXPECT_FALSE(core_.left_a_job());
}

}  // namespace
}  // namespace shoal::worker
