"""The StableSSM paper, judged by our own runs: registered claims, designs of runs, statistics, verdicts and reports."""
