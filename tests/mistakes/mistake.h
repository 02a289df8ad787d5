// What a user may get wrong, as a table: a row is the files and the command line, the exit code,
// and what the line on stderr must say. Rows are grouped by where the mistake lies.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace shoal::testing {

// Where a row runs. "{at}", "{shared}" and "{coordinator}" in a row stand for these.
struct Place {
  std::string at;           // the row's own folder
  std::string shared;       // for all rows: train.jsonl, tokenizer, model, token, a finished run
  std::string coordinator;  // HOST:PORT, where the row's `make` starts one
};

struct Mistake {
  enum class Kind {
    kOneLine,   // stderr is the line of the error and nothing else
    kAmong,     // the line of the error stands among notices
    kWarning,   // a line of warning, whatever comes after
    kNoMistake  // taken as it is: stderr is empty
  };

  std::string name;
  // Names and contents.
  std::vector<std::pair<std::string, std::string>> files;
  // After "shoal", split at spaces.
  std::string command;
  // What the line says, in this order: file, line or key, and what to do.
  std::vector<std::string> says;
  int code = 2;
  Kind kind = Kind::kOneLine;
  // Makes what takes more than text; what it returns lives while the command runs.
  std::function<std::shared_ptr<void>(Place&)> make = {};
  // Runs the program, not the function in it: for what starts processes.
  bool program = false;
  // Must not stand on stderr.
  std::string never = {};
};

// For GoogleTest: the command line.
void PrintTo(const Mistake& mistake, std::ostream* out);

std::vector<Mistake> JobMistakes();      // in job.yaml and --set
std::vector<Mistake> DataMistakes();     // in what is trained on
std::vector<Mistake> ModelMistakes();    // in folders of models
std::vector<Mistake> RunMistakes();      // in where and how a job runs
std::vector<Mistake> CommandMistakes();  // in verbs, options and their values

// The text of a job that is right, and more of it: line 7 on.
std::string Job(const std::string& more = "");

// The row of a job file with these lines more, looked at by `shoal plan`.
Mistake InJob(const std::string& name, const std::string& more, std::vector<std::string> says);

// The same with one --set and no line more.
Mistake InSet(const std::string& name, const std::string& set, std::vector<std::string> says);

// Copies the shared model to {at}/model.
void CopyModel(const Place& place);
// Replaces text in a file of that copy; fails the test where it is not there.
void Edit(const Place& place, const std::string& file, const std::string& from,
          const std::string& to);

}  // namespace shoal::testing
