"""The operator: EnginePools, Inferlets and InferletRuns as Kubernetes objects, kept as their specs say."""
