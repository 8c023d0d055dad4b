// What the tests of credentials stand on: an environment, files and a network that are not there.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <once/aws/credentials.hpp>
#include <once/error.hpp>
#include <once/testing/manual_time.hpp>

#include "aws/credentials_search.hpp"
#include "aws/http.hpp"

namespace once::aws {

using Variables = std::map<std::string, std::string>;

inline Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "once_aws_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  // The file's path.
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline HttpAnswer answered(int status, std::string body = {}) {
  HttpAnswer answer;
  answer.status = status;
  answer.body = std::move(body);
  return answer;
}

inline HttpAnswer unanswered(ErrorKind kind, std::string message) {
  HttpAnswer answer;
  answer.error = Error{kind, std::move(message)};
  return answer;
}

// Plays a transcript: each request must be the next one, as "GET http://127.0.0.1:8000/path".
class FakeHttp final : public HttpClient {
 public:
  ~FakeHttp() override { EXPECT_TRUE(transcript_.empty()) << "not asked for: " << transcript_.front().first; }

  void expect(std::string line, HttpAnswer answer) { transcript_.emplace_back(std::move(line), std::move(answer)); }

  void send(HttpRequest request, Callback<void(HttpAnswer)> done) override {
    const bool usual_port = request.port == (request.tls ? 443 : 80);
    const std::string line = request.method + (request.tls ? " https://" : " http://") + request.host +
                             (usual_port ? "" : ":" + std::to_string(request.port)) + request.target;
    sent.push_back(std::move(request));
    if (transcript_.empty() || transcript_.front().first != line) {
      ADD_FAILURE() << "unexpected: " << line
                    << (transcript_.empty() ? std::string() : ", but not: " + transcript_.front().first);
      done(unanswered(ErrorKind::misuse, "unexpected"));
      return;
    }
    HttpAnswer answer = std::move(transcript_.front().second);
    transcript_.pop_front();
    done(std::move(answer));
  }

  // A header of a request that was sent, or "".
  [[nodiscard]] std::string header(std::size_t request, std::string_view name) const {
    for (const auto& [key, value] : sent.at(request).headers) {
      if (key == name) return value;
    }
    return {};
  }

  std::vector<HttpRequest> sent;

 private:
  std::deque<std::pair<std::string, HttpAnswer>> transcript_;
};

}  // namespace once::aws
