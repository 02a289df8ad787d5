// `shoal train JOB --json` as a test sees it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/program.h"

namespace shoal::testing {

struct StepLine {
  int64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double learning_rate = 0;
  int64_t tokens = 0;
  int64_t target_tokens = 0;
};

struct TrainRun {
  ProgramResult program;
  std::vector<StepLine> steps;  // by the order printed
  bool done = false;
  std::string checkpoint;  // of the done event
};

// Makes train.jsonl (chatml), tokenizer and model (of a named shape) in the folder.
void MakeModel(const std::string& folder, const std::string& shape = "tiny");

// Parses what `shoal train --json` printed; a line that is not JSON fails the test.
std::vector<StepLine> ParseSteps(const std::string& output);

// Writes `job_yaml` to a file and trains; extra arguments are appended, and the environment added
// to this process's own.
TrainRun Train(const std::string& job_yaml, const std::vector<std::string>& arguments = {},
               absl::Duration timeout = absl::Minutes(5),
               const std::map<std::string, std::string>& environment = {});

}  // namespace shoal::testing
