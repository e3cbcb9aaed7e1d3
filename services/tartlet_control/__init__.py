"""The control layer: queues, batches, maps virtual ids to physical ones, decides order."""
