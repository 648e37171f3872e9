"""Updates that fail: values that are not finite, and too little memory."""
