#include "core/data/token_file.h"

#include <cstring>
#include <limits>
#include <vector>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/token_file_layout.h"

namespace shoal::formats {
namespace {

struct Written {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
};

std::vector<Written> RandomSamples(int count, int32_t vocabulary, uint64_t seed) {
  Random random(seed);
  std::vector<Written> samples;
  for (int i = 0; i < count; ++i) {
    Written sample;
    const int64_t length = random.Between(1, 5000);
    for (int64_t t = 0; t < length; ++t) {
      sample.tokens.push_back(
          static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocabulary))));
    }
    for (int64_t t = 0; t < length; ++t) {
      const bool target = t + 1 < length && random.Below(2) == 0;
      sample.labels.push_back(target ? sample.tokens[static_cast<size_t>(t) + 1] : kIgnoredLabel);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

absl::Status Write(const std::string& path, const std::vector<Written>& samples,
                   int64_t vocabulary) {
  SHOAL_ASSIGN_OR_RETURN(auto writer, TokenFileWriter::Create(path, vocabulary, 77));
  for (const Written& sample : samples) {
    SHOAL_RETURN_IF_ERROR(writer->Add(sample.tokens, sample.labels));
  }
  return writer->Finish();
}

TEST(TokenFile, ReadsBackWhatWasWritten) {
  const TemporaryFolder folder;
  const auto samples = RandomSamples(300, 1000, 1);  // larger than the writer's buffer
  ASSERT_OK(Write(folder / "data.tokens", samples, 1000));
  auto file = TokenFile::Open(folder / "data.tokens");
  ASSERT_OK(file.status());
  ASSERT_EQ((*file)->samples(), 300);
  EXPECT_EQ((*file)->vocabulary(), 1000);
  EXPECT_EQ((*file)->tokenizer_hash(), 77U);
  int64_t total = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto sample = (*file)->Sample(static_cast<int64_t>(i));
    ASSERT_OK(sample.status());
    EXPECT_TRUE(std::ranges::equal(sample->tokens, samples[i].tokens));
    EXPECT_TRUE(std::ranges::equal(sample->labels, samples[i].labels));
    EXPECT_EQ((*file)->tokens(static_cast<int64_t>(i)),
              static_cast<int64_t>(samples[i].tokens.size()));
    EXPECT_EQ((*file)->targets(static_cast<int64_t>(i)), sample->targets);
    total += (*file)->tokens(static_cast<int64_t>(i));
  }
  EXPECT_EQ((*file)->total_tokens(), total);
  EXPECT_TRUE(absl::IsOutOfRange((*file)->Sample(300).status()));
  EXPECT_TRUE(absl::IsOutOfRange((*file)->Sample(-1).status()));
}

TEST(TokenFile, AnEmptyFileIsValid) {
  const TemporaryFolder folder;
  ASSERT_OK(Write(folder / "empty", {}, 10));
  const auto file = TokenFile::Open(folder / "empty");
  ASSERT_OK(file.status());
  EXPECT_EQ((*file)->samples(), 0);
}

TEST(TokenFileWriter, LeavesNothingBehindWithoutFinish) {
  const TemporaryFolder folder;
  {
    auto writer = TokenFileWriter::Create(folder / "data", 10, 0);
    ASSERT_OK(writer.status());
    ASSERT_OK((*writer)->Add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{2, kIgnoredLabel}));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  ASSERT_OK(Write(folder / "data", RandomSamples(2, 10, 3), 10));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(TokenFileWriter, RefusesBadSamples) {
  const TemporaryFolder folder;
  auto writer = TokenFileWriter::Create(folder / "data", 10, 0);
  ASSERT_OK(writer.status());
  using Ids = std::vector<int32_t>;
  EXPECT_REFUSED((*writer)->Add(Ids{}, Ids{}), "sample 0 has 0 tokens");
  EXPECT_REFUSED((*writer)->Add(Ids{1, 2}, Ids{2}), "1 labels for 2 tokens");
  EXPECT_REFUSED((*writer)->Add(Ids{1, 2}, Ids{2, 2}), "shifted");
  EXPECT_REFUSED((*writer)->Add(Ids{1, 10}, Ids{2, -100}), "id 10 is outside the vocabulary of 10");
  EXPECT_REFUSED((*writer)->Add(Ids{1, 2}, Ids{-1, -100}), "id -1 is outside");
  EXPECT_REFUSED((*writer)->AddPair(Ids{1, 2, 1, 2}, Ids{-100, -100, 2, -100}, {2, 0}),
                 "2 of the 4 tokens of pair 0 are said to be chosen, and 0 of its 1 targets");
  EXPECT_REFUSED((*writer)->AddPair(Ids{1, 2, 1, 2}, Ids{2, -100, -100, -100}, {2, 1}),
                 "1 of its 1 targets");
  EXPECT_REFUSED((*writer)->AddPair(Ids{1, 2}, Ids{2, -100}, {2, 1}), "2 of the 2 tokens");
  EXPECT_REFUSED((*writer)->AddPair(Ids{1, 2, 3}, Ids{2, -100}, {2, 1}), "with 2 labels");
  EXPECT_REFUSED(TokenFileWriter::Create(folder / "x", 0, 0).status(), "vocabulary size 0");
}

TEST(TokenFile, RefusesDamage) {
  const TemporaryFolder folder;
  ASSERT_OK(Write(folder / "good", RandomSamples(5, 100, 2), 100));
  const std::string good = *ReadFile(folder / "good");
  const auto open = [&](const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(folder / "bad", contents).ok());
    return TokenFile::Open(folder / "bad").status();
  };
  EXPECT_TRUE(absl::IsNotFound(TokenFile::Open(folder / "none").status()));
  EXPECT_REFUSED(open(""), "not a token file");
  EXPECT_REFUSED(open("{\"messages\": []}" + std::string(200, ' ')),
                 "does not start with SHOALTOK");
  EXPECT_REFUSED(open(good.substr(0, good.size() - 1)), "truncated");
  EXPECT_REFUSED(open(good + "x"), "truncated");
  std::string version = good;
  version[8] = 9;
  EXPECT_REFUSED(open(version), "token file version 9");
  // Any flipped bit of header or index is noticed.
  for (size_t byte = 8; byte < sizeof(TokenFileHeader) + 5 * sizeof(TokenFileEntry); ++byte) {
    std::string damaged = good;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x10);
    EXPECT_FALSE(open(damaged).ok()) << byte;
  }
}

TEST(TokenFile, KeepsHowManySamplesEachSourceHas) {
  const TemporaryFolder folder;
  const auto write = [&](const std::vector<int64_t>& sources) -> absl::Status {
    SHOAL_ASSIGN_OR_RETURN(const auto writer, TokenFileWriter::Create(folder / "mixed", 10, 5));
    for (const int64_t samples : sources) {
      writer->BeginSource();
      for (int64_t i = 0; i < samples; ++i) {
        SHOAL_RETURN_IF_ERROR(
            writer->Add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{2, -100}));
      }
    }
    return writer->Finish();
  };
  ASSERT_OK(write({3, 1, 2}));
  const auto file = TokenFile::Open(folder / "mixed");
  ASSERT_OK(file.status());
  EXPECT_EQ((*file)->source_samples(), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ((*file)->Sample(5)->tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_REFUSED(write({3, 0, 2}), "source 2 of the mixture is left without a sample");
  const std::string good = *ReadFile(folder / "mixed");
  const size_t sources = sizeof(TokenFileHeader) + 6 * sizeof(TokenFileEntry);
  for (size_t byte = 8; byte < sources + 3 * sizeof(uint64_t); ++byte) {
    std::string damaged = good;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x10);
    ASSERT_OK(WriteFileAtomically(folder / "bad", damaged));
    EXPECT_FALSE(TokenFile::Open(folder / "bad").ok()) << byte;
  }
}

TEST(TokenFile, RefusesSourcesThatLieWithAValidChecksum) {
  TokenFileHeader header;
  header.version = kTokenFileVersionOfMixture;
  header.sources = 2;
  header.sample_count = 2;
  header.token_count = 4;
  const std::vector<TokenFileEntry> index = {{0, 2, 1}, {2, 2, 1}};
  const auto check = [&](const std::vector<uint64_t>& sources) {
    header.checksum = TokenFileChecksum(header, {index, sources, {}});
    return CheckTokenFileIndex(header, {index, sources, {}});
  };
  EXPECT_THAT(check({1, 1}), IsOk());
  EXPECT_REFUSED(check({2, 0}), "source 1 is said to have 0 samples");
  EXPECT_REFUSED(check({1, 2}), "source 1 is said to have 2 samples");
  EXPECT_REFUSED(check({1, ~uint64_t{0}}), "source 1");
  header.sources = 1;
  EXPECT_REFUSED(check({1}), "1 samples are of no source");
}

struct Weighted {
  std::vector<int32_t> labels;
  std::vector<float> weights;
};

absl::Status WriteWeighted(const std::string& path, const std::vector<Weighted>& samples,
                           bool mixture = false) {
  SHOAL_ASSIGN_OR_RETURN(const auto writer, TokenFileWriter::Create(path, 10, 5));
  for (const Weighted& sample : samples) {
    if (mixture) {
      writer->BeginSource();
    }
    const std::vector<int32_t> tokens(sample.labels.size(), 1);
    SHOAL_RETURN_IF_ERROR(writer->Add(tokens, sample.labels, sample.weights));
  }
  return writer->Finish();
}

TEST(TokenFile, KeepsWhatTargetsWeigh) {
  const TemporaryFolder folder;
  const std::vector<Weighted> samples = {{{2, 3, -100}, {}},
                                         {{2, -100, 3, -100}, {0.5f, 1.0f, 2.25f, 1.0f}},
                                         {std::vector<int32_t>(70'000, -100), {}},
                                         {{4, -100}, {}}};
  for (const bool mixture : {false, true}) {
    ASSERT_OK(WriteWeighted(folder / "data", samples, mixture));
    const auto file = TokenFile::Open(folder / "data");
    ASSERT_OK(file.status());
    EXPECT_EQ((*file)->source_samples().size(), mixture ? 4U : 0U);
    EXPECT_EQ((*file)->weight(0), 2);
    EXPECT_EQ((*file)->weight(1), 2.75);
    EXPECT_EQ((*file)->weight(2), 0);
    EXPECT_EQ((*file)->Sample(0)->weights, (std::vector<float>{1, 1, 1}));
    EXPECT_EQ((*file)->Sample(1)->weights, samples[1].weights);
    EXPECT_EQ((*file)->Sample(3)->weights, (std::vector<float>{1, 1}));
    EXPECT_EQ((*file)->Sample(3)->labels, samples[3].labels);
  }
  ASSERT_OK(WriteWeighted(folder / "plain", {samples[0], samples[3]}));
  const auto plain = TokenFile::Open(folder / "plain");
  EXPECT_EQ((*plain)->weight(0), 2);
  EXPECT_TRUE((*plain)->Sample(0)->weights.empty());
  EXPECT_EQ((*ReadFile(folder / "plain"))[8], 1) << "the version that there was before weights";
}

TEST(TokenFile, RefusesWeightsThatAreNone) {
  const TemporaryFolder folder;
  const auto write = [&](std::vector<float> weights) {
    return WriteWeighted(folder / "data", {{{2, -100}, std::move(weights)}});
  };
  EXPECT_REFUSED(write({1}), "sample 0: 1 weights for 2 labels");
  for (const float bad : {0.0f, -1.0f, 1e-7f, 2e6f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_REFUSED(write({bad, 1}), "sample 0 position 0: the weight");
  }
  EXPECT_REFUSED(write({2, 2}), "sample 0 position 1: the weight 2 is not possible");
}

TEST(TokenFile, RefusesWeightsThatLieWithAValidChecksum) {
  const TemporaryFolder folder;
  ASSERT_OK(WriteWeighted(folder / "good", {{{2, 3, -100}, {2, 3, 1}}}));
  const std::string good = *ReadFile(folder / "good");
  const size_t sums = sizeof(TokenFileHeader) + sizeof(TokenFileEntry);
  const auto with = [&](double sum, float first) {
    std::string lies = good;
    std::memcpy(lies.data() + sums, &sum, sizeof(sum));
    std::memcpy(lies.data() + lies.size() - 3 * sizeof(float), &first, sizeof(first));
    TokenFileHeader header;
    TokenFileEntry entry;
    std::memcpy(&header, lies.data(), sizeof(header));
    std::memcpy(&entry, lies.data() + sizeof(header), sizeof(entry));
    header.checksum = TokenFileChecksum(header, {{&entry, 1}, {}, {&sum, 1}});
    std::memcpy(lies.data(), &header, sizeof(header));
    EXPECT_THAT(WriteFileAtomically(folder / "liar", lies), IsOk());
    const auto opened = TokenFile::Open(folder / "liar");
    return opened.ok() ? (*opened)->Sample(0).status() : opened.status();
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  ASSERT_OK(with(5, 2));
  EXPECT_REFUSED(with(6, 2), "sample 0: its targets weigh 5 where the index says 6");
  EXPECT_REFUSED(with(5, std::numeric_limits<float>::quiet_NaN()), "position 0: the weight nan");
  for (const double sum : {0.0, 1e-300, -5.0, 3e6, kNan}) {
    EXPECT_REFUSED(with(sum, 2), "the 2 targets of sample 0 are said to weigh");
  }
  // Any flipped bit before the tokens is noticed.
  for (size_t byte = 8; byte < sums + sizeof(double); ++byte) {
    std::string damaged = good;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 0x10);
    ASSERT_OK(WriteFileAtomically(folder / "bad", damaged));
    EXPECT_FALSE(TokenFile::Open(folder / "bad").ok()) << byte;
  }
}

TEST(TokenFile, NamesAFileThatIsCutShortWhileOpen) {
  const TemporaryFolder folder;
  ASSERT_OK(Write(folder / "data", RandomSamples(5, 100, 2), 100));
  const auto file = TokenFile::Open(folder / "data");
  ASSERT_OK(file.status());
  std::filesystem::resize_file(folder / "data", 300);
  EXPECT_REFUSED((*file)->Sample(4).status(), folder / "data was cut short while it was open");
}

TEST(TokenFile, RefusesAnIndexThatLiesWithAValidChecksum) {
  const TemporaryFolder folder;
  TokenFileHeader header;
  header.vocabulary = 10;
  header.sample_count = 2;
  header.token_count = 4;
  const auto parse = [&](const std::vector<TokenFileEntry>& index,
                         const std::vector<int32_t>& ids) {
    header.checksum = TokenFileChecksum(header, {index, {}, {}});
    std::string file(reinterpret_cast<const char*>(&header), sizeof(header));
    file.append(reinterpret_cast<const char*>(index.data()), index.size() * sizeof(index[0]));
    file.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0]));
    EXPECT_THAT(WriteFileAtomically(folder / "liar", file), IsOk());
    const auto opened = TokenFile::Open(folder / "liar");
    return opened.ok() ? (*opened)->Sample(1).status() : opened.status();
  };
  const std::vector<int32_t> ids = {1, 2, 3, 4, 2, -100, 4, -100};
  ASSERT_OK(parse({{0, 2, 1}, {2, 2, 1}}, ids));
  EXPECT_REFUSED(parse({{0, 2, 1}, {1, 2, 1}}, ids), "index entry of sample 1");
  EXPECT_REFUSED(parse({{0, 2, 1}, {2, 3, 1}}, ids), "index entry of sample 1");
  EXPECT_REFUSED(parse({{0, 2, 2}, {2, 2, 1}}, ids), "index entry of sample 0");
  EXPECT_REFUSED(parse({{0, 2, 1}, {2, 1, 0}}, ids), "covers 3 of 4 tokens");
  EXPECT_REFUSED(parse({{0, 2, 1}, {2, 2, 0}}, ids), "targets");
  EXPECT_REFUSED(parse({{0, 2, 1}, {2, 2, 1}}, {1, 2, 3, 10, 2, -100, 4, -100}),
                 "outside the vocabulary");
  EXPECT_REFUSED(parse({{0, 2, 1}, {2, 2, 1}}, {1, 2, 3, 4, 2, -100, -3, -100}),
                 "outside the vocabulary");
  EXPECT_REFUSED(parse({{0, 2, 1}, {2, 2, 1}}, {1, 2, 3, 4, 2, -100, -100, 4}), "at its end");
}

TEST(TokenFile, RefusesPairsThatLieWithAValidChecksum) {
  const TemporaryFolder folder;
  TokenFileHeader header;
  header.version = kTokenFileVersionOfPairs;
  header.vocabulary = 10;
  header.sample_count = 1;
  header.token_count = 5;
  const auto parse = [&](const TokenFileEntry& entry, const ChosenPart& chosen,
                         const std::vector<int32_t>& ids) {
    header.checksum = TokenFileChecksum(header, {{&entry, 1}, {}, {}, {&chosen, 1}});
    std::string file(reinterpret_cast<const char*>(&header), sizeof(header));
    file.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
    file.append(reinterpret_cast<const char*>(&chosen), sizeof(chosen));
    file.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(ids[0]));
    EXPECT_THAT(WriteFileAtomically(folder / "liar", file), IsOk());
    const auto opened = TokenFile::Open(folder / "liar");
    return opened.ok() ? (*opened)->Sample(0).status() : opened.status();
  };
  const std::vector<int32_t> ids = {1, 2, 1, 3, 4, 2, -100, 3, 4, -100};
  ASSERT_OK(parse({0, 5, 3}, {2, 1}, ids));
  EXPECT_REFUSED(parse({0, 5, 3}, {0, 0}, ids), "0 of the 5 tokens of pair 0");
  EXPECT_REFUSED(parse({0, 5, 3}, {5, 3}, ids), "5 of the 5 tokens of pair 0");
  EXPECT_REFUSED(parse({0, 5, 3}, {2, 2}, ids), "of pair 0");
  EXPECT_REFUSED(parse({0, 5, 3}, {3, 0}, ids), "of pair 0");
  EXPECT_REFUSED(parse({0, 5, 2}, {2, 0}, {1, 2, 1, 3, 4, -100, -100, 3, 4, -100}), "of pair 0");
  EXPECT_REFUSED(parse({0, 5, 1}, {2, 1}, {1, 2, 1, 3, 4, 2, -100, -100, -100, -100}), "of pair 0");
  EXPECT_REFUSED(parse({0, 5, 3}, {3, 2}, ids), "at its end");
}

}  // namespace
}  // namespace shoal::formats
