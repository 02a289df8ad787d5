// What `shoal train` offers to type next: commands that can be pasted as they are.
#pragma once

#include <string>
#include <vector>

#include "core/job/job.h"

namespace shoal::cli {

// Goes on with the run: the overrides say what the job file alone does not. No `token_file`: the
// run needs none.
std::string ResumeCommand(const std::string& job_file, const std::vector<std::string>& overrides,
                          const std::string& token_file);

// Tries the model of `folder` and measures it, in the form in which the job trained it.
std::string GenerateCommand(const std::string& folder, const plan::Job& job);
std::string EvalCommand(const std::string& folder, const plan::Job& job);

}  // namespace shoal::cli
