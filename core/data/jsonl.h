// Samples as JSON objects, in one of these forms, told apart by their keys:
//
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//                                            with "tools" beside it; a message may have tool_calls,
//                                            reasoning_content and what else templates read
//   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
//                                            ShareGPT; a "system" beside it comes first
//   {"prompt": "...", "completion": "..."}   the same as a user's and an assistant's message
//   {"instruction": "...", "output": "..."}  Alpaca; with "input" below the instruction, "system"
//                                            and "history" ([[user, assistant], ...]) before it
//   {"text": "..."}                          a document: of train.objective pretrain, which takes
//                                            no other form
//   {"prompt": ..., "chosen": ..., "rejected": ...}
//                                            a pair of replies: of train.objective dpo, which takes
//                                            no other form; core/data/pairs/pair.h
//   {"input_ids": [...], "labels": [...]}    as in Hugging Face: equally long, -100 where no
//                                            loss is taken, NOT shifted
//
// Any of them may have a "weight", a number by which the loss on it is multiplied; messages (and
// turns of conversations) may, and "weights" of input_ids, one for each. Those of 0 are not learnt.
//
// Any of them may have "answer": "...", which `shoal eval` compares with what the model says.
// plan::DataOptions::fields gives a file's own names for messages, prompt, completion, chosen,
// rejected, input_ids, labels, weight, weights, answer and text. Other fields are ignored. Errors
// are reported as "FILE:LINE: ...".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/chat/message.h"
#include "core/job/job.h"

namespace shoal::worker {

struct JsonlSample {
  std::vector<ChatMessage> messages;  // of conversations; of a pair, what was chosen
  std::vector<ChatMessage> rejected;  // of a pair
  nlohmann::ordered_json tools;       // a list, or null
  std::string text;                   // of a document
  std::vector<int32_t> input_ids;     // the last form
  std::vector<int32_t> labels;        // as in the file: labels[i] is input_ids[i] or -100
  std::vector<float> weights;         // of labels, likewise; empty: 1 each
  float weight = 1;                   // of all of it
  std::optional<std::string> answer;
};

struct JsonlOptions {
  std::map<std::string, std::string> fields;  // our name -> the file's
  int64_t vocabulary = INT32_MAX;             // all ids are below it
  plan::Objective objective = plan::Objective::kSft;
};

// InvalidArgument names a key of `fields` that is not one of ours.
absl::Status CheckFields(const std::map<std::string, std::string>& fields);

// Parses one line, with `where` as its "FILE:LINE". Thread-safe.
absl::StatusOr<JsonlSample> ParseJsonlLine(std::string_view line, const JsonlOptions& options,
                                           std::string_view where);

}  // namespace shoal::worker
