"""The torch half of the tasks: data, batches, loss and accuracy. A task's options are in its file in `spec/tasks`."""
