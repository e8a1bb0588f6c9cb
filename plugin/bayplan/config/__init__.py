"""What the operator configures: keys, files, flags, kubelet's own files; and the policy that results."""
