// Tests that are transcripts: text files of
//
//   lines that are played
//   ----
//   what they led to, up to an empty line
//
// Lines that begin with # are for readers. The test fails if playing the file does not give the same file. With
// ONCE_PRINT_TRANSCRIPTS=1 it prints each as it is played, to be read before it is put into the file.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace once {

struct TranscriptPlayer {
  std::function<void(const std::string& line)> play;
  std::function<std::string()> take;   // What happened since the last time; each line ends with a newline.
  std::function<void()> comment = {};  // Called for each line that begins with "# ".
};

inline void play_transcript(const std::string& path, const TranscriptPlayer& player) {
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::ostringstream expected;
  std::ostringstream actual;
  bool told = false;
  for (std::string line; std::getline(file, line);) {
    expected << line << "\n";
    if (line == "----") {
      told = true;
      actual << line << "\n" << player.take();
    } else if (line.empty() || line.starts_with("#")) {
      actual << line << "\n";
      told = told && !line.empty();
      if (player.comment && line.starts_with("# ")) player.comment();
    } else if (!told) {
      actual << line << "\n";
      player.play(line);
    }
  }
  EXPECT_EQ(player.take(), "") << "happened after the last ----";
  if (std::getenv("ONCE_PRINT_TRANSCRIPTS") != nullptr) std::cout << actual.str();
  EXPECT_EQ(actual.str(), expected.str());
}

// The names of a folder's transcripts, without ".txt".
inline std::vector<std::string> transcripts_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt" && entry.path().stem() != "CMakeLists") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace once
